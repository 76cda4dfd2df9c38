# The Python module mercer._mercer. The stages' objects are linked into it, and the one shared library they need (fmt)
# is installed next to it, so that a wheel carries all it uses.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB module_sources CONFIGURE_DEPENDS python/src/*.cpp)
# STABLE_ABI: from Python 3.12 on, where wheel.py-api in pyproject.toml asks for it; else it is nothing.
nanobind_add_module(_mercer STABLE_ABI NB_STATIC NOMINSIZE ${module_sources})
# Under the stable ABI Python.h no longer brings <cstdio>, which nanobind's headers use; libc++ does not either.
if(TARGET nanobind-static-abi3)
  target_compile_options(nanobind-static-abi3 PUBLIC -include cstdio)
endif()
target_include_directories(_mercer PRIVATE python/src)
set(module_stages ${MERCER_STAGE_TARGETS})
list(REMOVE_ITEM module_stages mercer_c_api mercer_compat)  # libmercer's, libmercer_fastkron's
target_link_libraries(_mercer PRIVATE ${module_stages})
target_compile_definitions(_mercer PRIVATE MERCER_VERSION="${PROJECT_VERSION}")
set_target_properties(_mercer PROPERTIES INSTALL_RPATH "$ORIGIN")
# Only the module's entry point is visible, so a libmercer in the same process does not meet this copy.
target_link_options(_mercer PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/module.map)
set_property(TARGET _mercer APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/module.map)
install(TARGETS _mercer LIBRARY DESTINATION mercer COMPONENT python)

# GPU kernels of the zoo, compiled into the package (cmake/cuda_store.txt): "all" or some of its architectures.
set(MERCER_STORE_ARCHITECTURES "" CACHE STRING "GPU architectures whose kernels of the zoo are shipped")
set(MERCER_STORE_CACHE "${PROJECT_BINARY_DIR}/store" CACHE PATH "Where these kernels are kept for the next build")
if(MERCER_STORE_ARCHITECTURES)
  string(REPLACE ";" " " store_architectures "${MERCER_STORE_ARCHITECTURES}")
  install(CODE "execute_process(
    COMMAND \"${Python_EXECUTABLE}\" \"${PROJECT_SOURCE_DIR}/cmake/make_store.py\"
            --module \"$<TARGET_FILE_DIR:_mercer>\"
            --folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/mercer/store\" --cache \"${MERCER_STORE_CACHE}\"
            --architectures ${store_architectures}
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python)
endif()

foreach(configuration NONE RELEASE RELWITHDEBINFO)
  get_target_property(fmt_file fmt::fmt IMPORTED_LOCATION_${configuration})
  get_target_property(fmt_soname fmt::fmt IMPORTED_SONAME_${configuration})
  if(fmt_soname)
    file(REAL_PATH ${fmt_file} fmt_file)
    install(FILES ${fmt_file} DESTINATION mercer RENAME ${fmt_soname} COMPONENT python)
    break()
  endif()
endforeach()
