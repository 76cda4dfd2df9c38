"""This checkout as a package.

``conan create packaging/conan -s compiler.cppstd=20 --build=missing``
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

COPIED = ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "licenses/*", "src/*")


class Mercer(ConanFile):
    name = "mercer"
    description = "Kernels of pairs of points at the speed of the hardware"
    license = "Apache-2.0"
    topics = ("kernel-methods", "pairwise-distances", "cuda", "jit")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}  # noqa: RUF012, Conan's own form
    default_options = {"shared": True}  # noqa: RUF012
    generators = ("CMakeDeps",)

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "CMakeLists.txt"))
        self.version = re.search(r"project\(mercer VERSION ([0-9.]+)", text)[1]

    def export_sources(self):
        checkout = os.path.join(self.recipe_folder, "..", "..")
        for pattern in COPIED:
            copy(self, pattern, checkout, self.export_sources_folder)

    def requirements(self):
        self.requires("fmt/[>=9 <12]")
        self.requires("xbyak/[>=6]")
        self.requires("xxhash/[>=0.8]")

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Mercer runs on Linux")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.variables["MERCER_TESTS"] = False
        # Headers alone, which the build looks for among those of the system.
        for name in ("xbyak", "xxhash"):
            for folder in self.dependencies[name].cpp_info.includedirs:
                toolchain.extra_cxxflags.append(f"-isystem {folder}")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install(component="cpp")
        for folder in ("cmake", "pkgconfig"):  # Conan writes its own
            rmdir(self, os.path.join(self.package_folder, "lib", folder))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "*.txt", os.path.join(self.source_folder, "licenses"),
             os.path.join(self.package_folder, "licenses"))  # fmt: skip

    def package_info(self):
        self.cpp_info.libs = ["mercer"]
        self.cpp_info.set_property("cmake_target_name", "mercer::mercer")
        self.cpp_info.set_property("pkg_config_name", "mercer")
        self.cpp_info.system_libs = ["dl", "m", "pthread"]
