// NVRTC in a process of its own: what some options leave behind in it (docs/design/cuda_code.md) goes with the process.
//
//   this process                          mercer-nvrtc <file of NVRTC>
//   name, text, options, headers ------>  standard input
//   whether it compiled, code, log <----  standard output
#pragma once

#include "core/nvrtc.h"

namespace mercer {

/// As Nvrtc::compile, by the same library; absent, with a line in the log, where the process could not do it.
std::optional<NvrtcResult> compile_apart(const Nvrtc& compiler, const std::string& name, const std::string& text,
                                         const std::vector<std::string>& options,
                                         const std::vector<NvrtcHeader>& headers = {});

/// What `mercer-nvrtc` does: reads one request, compiles it by the library of this file and writes the result. Returns
/// the program's status.
int serve_nvrtc(const char* file, int input, int output);

}  // namespace mercer
