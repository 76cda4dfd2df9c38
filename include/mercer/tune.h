// Measured tiles: on a CUDA device, which shape of tile computes the pairs of a call fastest is found by running them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mercer/device.h"
#include "mercer/pairwise.h"

namespace mercer {

struct TuneReport {
  struct Tile {
    std::string text;  ///< "64x128x16, 8x8 a thread, …"
    double milliseconds = 0;
  };
  std::vector<Tile> tiles;    ///< that were measured, the fastest first
  std::string chosen, model;  ///< the one that calls use from now on, and what they use unmeasured
};

/// Makes a call again and again with different tiles, keeps the fastest on disk, and says what it found:
///
///   tune(arguments, [&](const Arguments& a) { pairwise(f, x, &z, out, a); });
///
/// Only tiles whose results are the same bit by bit take part. The choice serves every call of this formula, these
/// dtypes and this class of sizes on devices of this name, from this process and later ones (MERCER_CACHE_DIR); plans
/// of `context` that it concerns are made anew. The call's outputs are written. A graph captured before keeps its
/// kernels. Throws unsupported when the call runs no tile of pairs on CUDA, invalid_argument while a graph is being
/// captured, Cancelled when arguments.progress says so.
TuneReport tune(const Arguments& arguments, const std::function<void(const Arguments&)>& call,
                Context& context = Context::shared());

}  // namespace mercer
