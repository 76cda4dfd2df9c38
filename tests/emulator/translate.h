// Device text of NVRTC's dialect as C++ of the host.
#pragma once

#include <string>
#include <vector>

namespace emulator {

/// A source file that includes device_text.h and exports a table of its kernels; `options` are NVRTC's.
std::string translate(const std::string& text, const std::vector<std::string>& options);

}  // namespace emulator
