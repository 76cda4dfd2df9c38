# GPU kernels in software (tests/emulator): stands in for the driver and for NVRTC, so that device code is tested where
# there is no GPU. A choice of the tests of ops, for these run some thousand times slower than on a GPU.
set(emulator_source ${PROJECT_SOURCE_DIR}/tests/emulator)
set(emulator_folder ${PROJECT_BINARY_DIR}/emulator)
add_library(emulated_driver SHARED ${emulator_source}/driver.cpp ${emulator_source}/machine.cpp)
target_link_libraries(emulated_driver PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(emulated_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1)
add_library(emulated_nvrtc SHARED ${emulator_source}/nvrtc.cpp ${emulator_source}/translate.cpp)
# Most kernels run for less time than their compiler does: -Og takes a sixth off both together, compared with -O1.
# What every kernel includes is most of what its compiler reads, so it is precompiled where the compiler is GCC; others
# find the header itself.
set(emulator_options -std=c++20 -Og -w -fPIC -mavx2 -mfma -mf16c -ffp-contract=off -fno-strict-aliasing
  -fno-exceptions -fvisibility=hidden -fno-gnu-unique)
set(emulator_precompiled ${emulator_folder}/precompiled)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  file(MAKE_DIRECTORY ${emulator_precompiled})
  add_custom_command(OUTPUT ${emulator_precompiled}/device_text.h.gch
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CMAKE_CXX_COMPILER} ${emulator_options} -x c++-header
            -o ${emulator_precompiled}/device_text.h.gch ${emulator_source}/device_text.h
    DEPENDS ${emulator_source}/device_text.h ${emulator_source}/device_builtins.h ${emulator_source}/machine.h
    COMMENT "Precompiling device_text.h" VERBATIM)
  target_sources(emulated_nvrtc PRIVATE ${emulator_precompiled}/device_text.h.gch)
endif()
list(JOIN emulator_options " " emulator_options)
list(JOIN CMAKE_CXX_COMPILER_LAUNCHER " " emulator_launcher)
target_compile_definitions(emulated_nvrtc PRIVATE
  "EMULATOR_FOLDER=\"${emulator_source}\"" "EMULATOR_PRECOMPILED=\"${emulator_precompiled}\""
  "EMULATOR_LAUNCHER=\"${emulator_launcher}\"" "EMULATOR_COMPILER=\"${CMAKE_CXX_COMPILER}\""
  "EMULATOR_OPTIONS=\"${emulator_options}\"")
set_target_properties(emulated_nvrtc PROPERTIES OUTPUT_NAME nvrtc SOVERSION 13)
# cuSOLVER and cuBLAS: one file of functions under both names.
foreach(name IN ITEMS cusolver cublas)
  add_library(emulated_${name} SHARED ${emulator_source}/solver.cpp)
  target_link_libraries(emulated_${name} PRIVATE mercer_core test_source_folder GTest::gtest)
  target_include_directories(emulated_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  set_target_properties(emulated_${name} PROPERTIES OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${emulator_folder})
endforeach()
set_target_properties(emulated_cusolver PROPERTIES SOVERSION 12)
set_target_properties(emulated_cublas PROPERTIES SOVERSION 13)
set_target_properties(emulated_driver emulated_nvrtc PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${emulator_folder})

# A list has the tests of a compute capability: 9.0, which has both kinds of products, or 8.0. The first has two lists,
# of tests with other kernels, since each process compiles its own; two more are of the C interface and of FastKron's.
# What a list calls long is a test of its own under that label.
function(emulated_tests name list filter cost)
  if(list MATCHES "c_api|compat")
    set(program test_${CMAKE_MATCH_0})
  else()
    set(program test_ops)
  endif()
  string(SUBSTRING ${list} 0 2 capability)
  string(JOIN ";" environment "LD_LIBRARY_PATH=${emulator_folder}" "EMULATOR_CAPABILITY=${capability}"
    "MERCER_NVRTC=${emulator_folder}/libnvrtc.so.13" "MERCER_CUSOLVER=${emulator_folder}/libcusolver.so.12"
    "MERCER_CACHE_DIR=off")
  add_test(NAME ${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}" COST ${cost} LABELS "${ARGN}"
    FAIL_REGULAR_EXPRESSION "SKIPPED;Running 0 tests")
endfunction()
foreach(list IN ITEMS 90 90_sums 90_c_api 90_compat 80)
  file(STRINGS ${emulator_source}/tests_${list}.txt patterns REGEX "^[^#]")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${emulator_source}/tests_${list}.txt)
  set(long_patterns ${patterns})
  list(FILTER long_patterns INCLUDE REGEX " long$")
  list(FILTER patterns EXCLUDE REGEX " long$")
  list(JOIN patterns ":" filter)
  if(long_patterns)
    list(TRANSFORM long_patterns REPLACE " long$" "")
    list(JOIN long_patterns ":" long_filter)
    emulated_tests(emulated_gpu_${list}_long ${list} "${long_filter}" 95 long emulated)
    string(APPEND filter "-${long_filter}")
  endif()
  emulated_tests(emulated_gpu_${list} ${list} "${filter}" 90 emulated)
endforeach()
