// Passes of products with Kronecker products as CUDA C++.
#pragma once

#include <string>

#include "plan/kron/kron_gpu.h"

namespace mercer::codegen {

/// The kernel of a pass, and its text.
inline const char* kron_kernel_name(const plan::KronGpuTile&) { return "kron_step"; }
std::string cuda_kron_source(const plan::KronGpuTile& tile);
inline const char* kron_kernel_name(const plan::KronChain&) { return "kron_chain"; }
std::string cuda_kron_source(const plan::KronChain& chain);
inline const char* kron_kernel_name(const plan::KronWide&) { return "kron_wide"; }
std::string cuda_kron_source(const plan::KronWide& wide);
inline const char* kron_kernel_name(const plan::KronDouble&) { return "kron_double"; }
std::string cuda_kron_source(const plan::KronDouble& kernel);
/// The kernel `kron_finish`, from the computing type to this one.
std::string cuda_kron_finish_source(Dtype type, Dtype out);

}  // namespace mercer::codegen
