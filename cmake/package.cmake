# `make deb`: the component cpp as a package for Debian. Dependencies are computed from the libraries.
file(READ LICENSE copyright)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS LICENSE licenses/xbyak.txt licenses/xxhash.txt)
foreach(library IN ITEMS xbyak xxhash)  # headers that are compiled in
  file(READ licenses/${library}.txt notice)
  string(APPEND copyright "\n\n${library}\n\n${notice}")
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/copyright "${copyright}")
install(FILES ${PROJECT_BINARY_DIR}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libmercer COMPONENT cpp)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libmercer)
set(CPACK_PACKAGE_VENDOR "The Mercer contributors")
set(CPACK_PACKAGE_CONTACT "The Mercer contributors <contributors@mercer.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL cpp)
set(CPACK_COMPONENT_CPP_DESCRIPTION "Distances, kernel matrices, products with them, gradients and neighbours by formulas,
linear algebra and Kronecker products, for C++ and C: libraries, headers, and files for CMake and pkg-config.")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_CPP_PACKAGE_NAME libmercer)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libopenblas0-pthread | libopenblas0 | liblapack3")  # LAPACK, loaded at run time
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev")  # to link libmercer.a
include(CPack)
