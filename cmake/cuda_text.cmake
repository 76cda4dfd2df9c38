# The device text of src/kernels/cuda/, embedded into codegen at build time: the library carries what it compiles.
set(cuda_text_folder ${PROJECT_SOURCE_DIR}/src/kernels/cuda)
file(GLOB_RECURSE cuda_text_files CONFIGURE_DEPENDS ${cuda_text_folder}/*.cuh ${cuda_text_folder}/*.h)
set(cuda_text_cpp ${PROJECT_BINARY_DIR}/generated/cuda_text_files.cpp)
add_custom_command(
  OUTPUT ${cuda_text_cpp}
  COMMAND ${CMAKE_COMMAND} "-DFILES=${cuda_text_files}" -DFOLDER=${cuda_text_folder} -DOUTPUT=${cuda_text_cpp}
          -P ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake
  DEPENDS ${cuda_text_files} ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake
  COMMENT "Embedding the device text" VERBATIM)
target_sources(mercer_codegen PRIVATE ${cuda_text_cpp})
