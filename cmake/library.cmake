# libmercer and its package. After `cmake --install`, find_package(mercer) gives mercer::mercer, which is the shared
# library, or the static one where that is alone, and mercer::static; pkg-config knows both as `mercer`.
include(CMakePackageConfigHelpers)

# Both are made of the same objects. BUILD_SHARED_LIBS, where it is set, asks for one of them.
set(static_default ON)
set(shared_default ON)
if(MERCER_SANITIZE OR MERCER_SANITIZE_THREADS)
  set(static_default OFF)
elseif(DEFINED BUILD_SHARED_LIBS)
  set(shared_default ${BUILD_SHARED_LIBS})
  if(BUILD_SHARED_LIBS)
    set(static_default OFF)
  endif()
endif()
option(MERCER_SHARED "Build libmercer.so and libmercer_fastkron.so" ${shared_default})
option(MERCER_STATIC "Build libmercer.a" ${static_default})
if(NOT MERCER_SHARED AND NOT MERCER_STATIC)
  return()
endif()

set(library_stages ${MERCER_STAGE_TARGETS})
list(REMOVE_ITEM library_stages mercer_compat)  # names of other libraries, which get one of their own below

function(mercer_public library headers)
  target_compile_features(${library} INTERFACE cxx_std_20)
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include/${headers}>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/${headers}>)
  install(TARGETS ${library} EXPORT mercerTargets COMPONENT cpp)
endfunction()

# Until 1.0 a minor version may change the binary interface. Other symbols than those of the map stay inside; one that
# is left undefined would otherwise wait for its first user.
function(mercer_shared library map)
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINK_DEPENDS ${map})
  target_link_options(${library} PRIVATE LINKER:--version-script=${map}
                                         $<$<NOT:$<BOOL:${MERCER_SANITIZE}>>:LINKER:--no-undefined>)
endfunction()

if(MERCER_STATIC)
  add_library(mercer_static STATIC)
  add_library(mercer::static ALIAS mercer_static)
  foreach(stage IN LISTS library_stages)
    target_sources(mercer_static PRIVATE $<TARGET_OBJECTS:${stage}>)
  endforeach()
  target_link_libraries(mercer_static PRIVATE fmt::fmt Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(mercer_static PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME mercer EXPORT_NAME static)
  mercer_public(mercer_static "")
endif()

if(MERCER_SHARED)
  # public_symbols.txt as a map for the linker: a name, then whatever is no part of a longer one.
  set(exported "")
  set(private "")
  file(STRINGS cmake/public_symbols.txt names REGEX "^[^#]")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/public_symbols.txt)
  foreach(name IN LISTS names)
    string(REPLACE "~" "?" name ${name})  # which the linker's maps do not have
    if(name MATCHES "^private (.+)")
      string(APPEND private "    mercer::${CMAKE_MATCH_1}[!0-9A-Za-z_]*;\n")
    elseif(name MATCHES "^type (.+)")
      string(APPEND exported "    typeinfo?for?mercer::${CMAKE_MATCH_1};\n    typeinfo?name?for?mercer::${CMAKE_MATCH_1};\n"
                             "    vtable?for?mercer::${CMAKE_MATCH_1};\n")
    else()
      string(APPEND exported "    mercer::${name}[!0-9A-Za-z_]*;\n")
    endif()
  endforeach()
  configure_file(cmake/library.map.in ${PROJECT_BINARY_DIR}/library.map @ONLY)

  add_library(mercer SHARED)
  add_library(mercer::mercer ALIAS mercer)
  target_link_libraries(mercer PRIVATE ${library_stages})
  mercer_public(mercer "")
  mercer_shared(mercer ${PROJECT_BINARY_DIR}/library.map)

  # libmercer_fastkron, the target mercer::fastkron: FastKron's functions (mercer/compat/fastkron.h), for programs that
  # say #include <fastkron.h>.
  add_library(mercer_fastkron SHARED)
  add_library(mercer::fastkron ALIAS mercer_fastkron)
  target_link_libraries(mercer_fastkron PRIVATE mercer_compat mercer)
  set_target_properties(mercer_fastkron PROPERTIES EXPORT_NAME fastkron INSTALL_RPATH "$ORIGIN")
  mercer_public(mercer_fastkron mercer/compat)
  mercer_shared(mercer_fastkron ${PROJECT_SOURCE_DIR}/cmake/fastkron.map)
else()
  add_library(mercer::mercer ALIAS mercer_static)
endif()

set(mercer_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mercer)
configure_package_config_file(cmake/mercerConfig.cmake.in ${PROJECT_BINARY_DIR}/mercerConfig.cmake
                              INSTALL_DESTINATION ${mercer_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mercerConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH mercer_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" mercer_prefix ${mercer_prefix})
configure_file(cmake/mercer.pc.in ${PROJECT_BINARY_DIR}/mercer.pc @ONLY)

install(DIRECTORY include/mercer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
install(EXPORT mercerTargets NAMESPACE mercer:: DESTINATION ${mercer_package_dir} COMPONENT cpp)
install(FILES ${PROJECT_BINARY_DIR}/mercerConfig.cmake ${PROJECT_BINARY_DIR}/mercerConfigVersion.cmake
        DESTINATION ${mercer_package_dir} COMPONENT cpp)
install(FILES ${PROJECT_BINARY_DIR}/mercer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)

if(MERCER_TESTS)
  add_executable(bench_calls EXCLUDE_FROM_ALL bench/bench_calls.cpp)
  target_link_libraries(bench_calls PRIVATE mercer::mercer)
endif()
