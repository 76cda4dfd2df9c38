/// \file
/// Measured choices: which shape of tile computes the pairs of a call fastest on a CUDA device, or which plan a product
/// with a Kronecker product, on a CPU too, is found by running them. And measured costs, which plans follow.
///
/// \code
/// const mercer::TuneReport report =
///     mercer::tune(arguments, [&](const mercer::Arguments& a) { mercer::pairwise(f, x, &z, out, a); });
/// std::printf("%s in place of %s\n", report.chosen.c_str(), report.model.c_str());
/// \endcode
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mercer/device.h"
#include "mercer/kron.h"
#include "mercer/pairwise.h"

namespace mercer {

/// What was measured, and what came of it.
struct TuneReport {
  /// One that was measured: a tile, or a plan.
  struct Tile {
    std::string text;  ///< "64x128x16, 8x8 a thread, …"
    double milliseconds = 0;  ///< of a call
  };
  std::vector<Tile> tiles;  ///< that were measured, the fastest first
  std::string chosen;  ///< the one that calls use from now on
  std::string model;  ///< what they use unmeasured
};

/// Makes a call again and again with different tiles, keeps the fastest on disk, and says what it found:
///
///     tune(arguments, [&](const Arguments& a) { pairwise(f, x, &z, out, a); });
///
/// Only tiles whose results are the same bit by bit take part. The choice serves every call of this formula, these
/// dtypes and this class of sizes on devices of this name, from this process and later ones (MERCER_CACHE_DIR); plans
/// of `context` that it concerns are made anew. The call's outputs are written. A graph captured before keeps its
/// kernels. Throws unsupported when the call runs no tile of pairs on CUDA, invalid_argument while a graph is being
/// captured, Cancelled when arguments.progress says so.
TuneReport tune(const Arguments& arguments, const std::function<void(const Arguments&)>& call,
                Context& context = Context::shared());

namespace kron {

/// As mercer::tune, for a product with a Kronecker product: different divisions of the factors into passes over memory,
/// and different kernels for them.
///
///     kron::tune(options, [&](const Options& o) { kron::matmul(x, factors, out, o); })
///
/// All plans keep the error bound of mercer/kron.h, but the last bits of results may differ from those of the model's
/// plan. The choice serves calls of these extents, numbers of rows and items, dtype and alignment on devices of this
/// name, whatever the values of alpha and beta, in place too; calls on CUDA with alpha = 1 and no y have a choice of
/// their own, and those on a processor serve as many threads of its instruction set. `call` writes an out that is
/// neither x nor y; in the end it has what later calls make. options.progress is asked here. The caller's allocator is
/// asked once at most, for the most scratch memory that a plan takes. Throws unsupported for a call that multiplies by
/// no factor, invalid_argument while a graph is being captured and where out is x or y, Cancelled when options.progress
/// says so.
TuneReport tune(const Options& options, const std::function<void(const Options&)>& call,
                Context& context = Context::shared());

}  // namespace kron

/// Measures what vector instructions cost on this processor, alone and in turns, in some seconds, and keeps it on
/// disk. Where the processor's family is not known, plans and floors of later processes follow it; elsewhere it is
/// shown next to the family's row (docs/kernels/cpu_floor.md). It also measures what the ways cost that calls choose
/// among, which later processes on this processor follow (docs/design/cpu_ways.md). Returns a table for people.
/// Throws unsupported where there is no AVX2, code may not run or the clock cannot be measured, Cancelled when progress
/// says so.
std::string tune_cpu(const ProgressCallback& progress = {});

/// Measures what values of pairs cost that are stored and multiplied with v, and those that are made again, on a CUDA
/// device in some seconds, and keeps it on disk: ways of later processes on devices of this name are chosen by these
/// times in place of those of the compute capability (docs/design/costs.md). Takes 200 MB of the device's memory.
/// Returns a table for people. Throws unsupported and invalid_argument as calls on the device do, Cancelled when
/// progress says so.
std::string tune_gpu(int device, const ProgressCallback& progress = {});

}  // namespace mercer
