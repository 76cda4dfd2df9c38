// Verbs on a GPU whose arrays are in the memory of the host: blocks of points go through two pinned buffers while
// kernels run.
//
//   for each block of x:                          rows that fit on the device, twice
//     for each block of z:                        all of z stays on the device where it fits; else it comes again
//       part = verb(x block, z block)             the ordinary verb, on arrays of the device
//       total = merge(total, part)                kernels/cuda/common/stream_merge.cuh
//     out[rows] = total                           copied to the host while the next block is computed
//
// A step (one pair of blocks) starts small and grows until it takes about a tenth of a second, so that a call can be
// cancelled between steps. Where the device's memory turns out to be full, the rest is computed with smaller blocks.
#pragma once

#include "mercer/pairwise.h"

namespace mercer::ops {

struct Streamed {
  enum class Verb { pairwise, product, reduce, nearest, gradient };
  Verb verb = Verb::pairwise;
  const Tensor* factor = nullptr;        // v of a product, coef of a gradient
  ReduceKind reduce = ReduceKind::sum;
  std::int64_t k = 1;                    // neighbours
  Tensor out;                            // of the host, or of the device
  Tensor indices = {};                   // of neighbours, likewise
};

/// Inputs are arrays of the host without batch axes. Returns when `out` is written. Throws what the verb throws, and
/// unsupported for a batch, before anything is written.
void run_streamed(int device, const Formula& f, const Tensor& x, const Tensor* z, const Streamed& call,
                  const Arguments& arguments, Context& context = Context::shared());

}  // namespace mercer::ops
