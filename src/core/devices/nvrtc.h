// NVRTC, NVIDIA's compiler of CUDA C++ as a library: found and loaded at run time.
//
// Where it is looked for: MERCER_NVRTC, and then nowhere else; a copy that is in the process already (torch's, jax's);
// folders handed over by the package (pip wheels); LD_LIBRARY_PATH; CUDA_HOME, CUDA_PATH, /usr/local/cuda*; the
// loader's own places. The first whose major version the driver serves, else the first.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mercer {

/// A folder in which NVRTC may lie, such as site-packages/nvidia/cu13/lib; those of the first call come first.
void add_library_folder(std::filesystem::path folder);

/// The added folders, in the order of the calls, then those of installed toolkits.
std::vector<std::filesystem::path> library_folders();

struct NvrtcResult {
  bool ok = false;
  std::string cubin;  ///< machine code of one architecture; PTX for options that name a virtual one (compute_90)
  std::string log;    ///< errors, warnings, and what --ptxas-options=-v prints; also when it went well
};

class Nvrtc {
 public:
  struct Functions;
  Nvrtc(const Functions& functions, std::string file);

  int major() const { return major_; }
  int minor() const { return minor_; }
  std::string version() const;                                              ///< "13.0"
  const std::string& file() const { return file_; }                         ///< the library's file
  const std::vector<int>& architectures() const { return architectures_; }  ///< 80, 86, … that it compiles for
  /// `architecture` as in "sm_90a".
  bool knows(std::string_view architecture) const;

  /// Safe from many threads, which compile at once. `name` stands in the log's messages.
  NvrtcResult compile(const std::string& name, const std::string& text, const std::vector<std::string>& options) const;

 private:
  const Functions* functions_;
  std::string file_;
  int major_ = 0, minor_ = 0;
  std::vector<int> architectures_;
};

/// The compiler, loaded at the first call and kept; nullptr when none was found. Looks again after add_library_folder.
const Nvrtc* nvrtc();
/// The compiler if it is loaded already, nullptr otherwise.
const Nvrtc* nvrtc_if_loaded();
/// The file that nvrtc() would load, found without loading it (which takes 5 to 10 ms); absent when only the loader
/// can tell.
std::optional<std::filesystem::path> nvrtc_file();
/// What was looked for, in one line; empty when nvrtc() serves.
std::string nvrtc_why_not();
/// The pip package that holds the NVRTC for this machine's driver.
const char* nvrtc_package();
/// "NVRTC: 13.0 (file)", or why there is none and what to install.
std::string describe_nvrtc();

}  // namespace mercer
