# libmercer and its package: after `cmake --install`, find_package(mercer) gives the target mercer::mercer.
include(CMakePackageConfigHelpers)

add_library(mercer SHARED)
add_library(mercer::mercer ALIAS mercer)
set(library_stages ${MERCER_STAGE_TARGETS})
list(REMOVE_ITEM library_stages mercer_compat)  # names of other libraries, which get one of their own below
target_link_libraries(mercer PRIVATE ${library_stages})
target_compile_features(mercer INTERFACE cxx_std_20)
target_include_directories(mercer INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Until 1.0 a minor version may change the binary interface.
set_target_properties(mercer PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
# A symbol left undefined would otherwise wait for its first user.
target_link_options(mercer PRIVATE $<$<NOT:$<BOOL:${MERCER_SANITIZE}>>:LINKER:--no-undefined>)

# libmercer_fastkron, the target mercer::fastkron: FastKron's functions (mercer/compat/fastkron.h), for programs that say
# #include <fastkron.h>.
add_library(mercer_fastkron SHARED)
add_library(mercer::fastkron ALIAS mercer_fastkron)
target_link_libraries(mercer_fastkron PRIVATE mercer_compat mercer)
target_include_directories(mercer_fastkron INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include/mercer/compat>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/mercer/compat>)
set_target_properties(mercer_fastkron PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME fastkron VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")
target_link_options(mercer_fastkron PRIVATE $<$<NOT:$<BOOL:${MERCER_SANITIZE}>>:LINKER:--no-undefined>)

set(mercer_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mercer)
configure_package_config_file(cmake/mercerConfig.cmake.in ${PROJECT_BINARY_DIR}/mercerConfig.cmake
                              INSTALL_DESTINATION ${mercer_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mercerConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS mercer mercer_fastkron EXPORT mercerTargets COMPONENT cpp)
install(DIRECTORY include/mercer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
install(EXPORT mercerTargets NAMESPACE mercer:: DESTINATION ${mercer_package_dir} COMPONENT cpp)
install(FILES ${PROJECT_BINARY_DIR}/mercerConfig.cmake ${PROJECT_BINARY_DIR}/mercerConfigVersion.cmake
        DESTINATION ${mercer_package_dir} COMPONENT cpp)
