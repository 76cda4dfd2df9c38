// What ptxas said of kernels, in tests/golden/cuda_kernels.txt: registers, spills, shared memory, and of which text.
//
// A kernel whose text, options and compiler are those of the record is not compiled again: it would give the same.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/devices/nvrtc.h"
#include "core/hash.h"
#include "device/source_folder.h"
#include "jit/cuda_key.h"

namespace mercer::cuda {

struct Measured {
  int registers = 0, spill_bytes = 0, shared = 0;
  std::string of;     // which text, options and compiler; 16 digits of a hash
  std::string error;  // in place of the others
};

/// What a measurement is of.
inline std::string text_of(const jit::CudaSource& source) {
  return hash128(jit::key_of(source, nvrtc()->version())).to_text().substr(0, 16);
}

/// Rows by target and kernel.
class RecordedKernels {
 public:
  using Rows = std::map<std::pair<std::string, std::string>, Measured>;

  static std::string path() { return (testing::source_folder() / "tests" / "golden" / "cuda_kernels.txt").string(); }

  RecordedKernels() {
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string target, kernel;
      Measured row;
      if (line.empty() || line[0] == '#') continue;
      if (words >> target >> kernel >> row.registers >> row.spill_bytes) {
        words >> row.shared >> row.of;
        rows_[{target, kernel}] = row;
      }
    }
  }

  const Measured* find(const std::string& target, const std::string& kernel) const {
    const auto found = rows_.find({target, kernel});
    return found == rows_.end() ? nullptr : &found->second;
  }

  /// The record of this very text; none where it has to be compiled.
  std::optional<Measured> known(const std::string& target, const std::string& kernel, const std::string& of) const {
    const Measured* row = find(target, kernel);
    return row != nullptr && row->of == of ? std::optional(*row) : std::nullopt;
  }

  /// Writes the file with these rows in the place of all others of the target.
  void replace(const std::string& target, const std::vector<std::pair<std::string, Measured>>& measured) {
    std::erase_if(rows_, [&](const auto& row) { return row.first.first == target; });
    for (const auto& [kernel, row] : measured) rows_[{target, kernel}] = row;
    std::ofstream file(path());
    file << "# What ptxas says of tests/unit/backend/cuda/cuda_skeletons_test.cpp, which writes this with "
            "MERCER_UPDATE_GOLDEN=1.\n"
            "# Run on an H200: sm_90a, and what is written for sm_80 in its code. Compiled, not run: sm_86, sm_89, "
            "sm_100a, sm_120a.\n# target, kernel, registers a thread, bytes of spills (stores and loads), bytes of "
            "static shared memory, hash of the text, its options and the compiler\n";
    for (const auto& [key, row] : rows_)
      file << fmt::format("{:8} {:32} {:3} {:5} {:6} {}\n", key.first, key.second, row.registers, row.spill_bytes,
                          row.shared, row.of);
  }

 private:
  Rows rows_;
};

}  // namespace mercer::cuda
