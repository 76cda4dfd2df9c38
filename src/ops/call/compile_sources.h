// What a compilation ahead of time compiles for CUDA, as a list: for the cache, and for the store that is shipped.
#pragma once

#include <filesystem>
#include <vector>

#include "jit/cuda_compile.h"
#include "mercer/compile.h"

namespace mercer::ops {

/// A store has kernels in addition to those of the calls: of bare sums, for first calls of other formulas
/// (plan/gpu/sums/bare_sums.h).
enum class SourcesOf : bool { calls, store };

/// The kernels of every combination of the request on this device, or for this architecture without a device; equal
/// ones may be there several times. Throws as mercer::compile does.
std::vector<jit::CudaSource> cuda_sources(const Formula& f, const CompileRequest& request,
                                          const CompileRequest::Where& where, SourcesOf of = SourcesOf::calls,
                                          Context& context = Context::shared());

/// Compiles them, bare sums too, and adds them to a folder of kernels that will be shipped.
void write_cuda_store(const std::filesystem::path& folder, const Formula& f, const CompileRequest& request,
                      Context& context = Context::shared());

}  // namespace mercer::ops
