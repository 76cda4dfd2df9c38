// One factor applied to one tile: what codegen turns into a kernel. All extents and strides are part of the kernel.
//
//   for l, s, q, r:  out[l, q, s, r] = sum_p in[l, p, s, r] * factor[p, q]
//
// in[l, p, s, r] lies l * left.in + p * in_p + s * middle.in + r elements after args.in, out likewise; the factor is
// packed, row p at p * pitch.
#pragma once

#include <cstdint>
#include <string>

#include "mercer/device.h"
#include "mercer/tensor.h"

namespace mercer::plan {

/// Elements of a row of a packed factor are a multiple of this many bytes, zeros after the last.
inline constexpr std::int64_t kKronRowBytes = 64;

struct KronLoop {
  std::int64_t count = 1, in = 0, out = 0;  // strides in elements
};

struct KronStepSource {
  Dtype type = Dtype::float32;  // float32, float64, int32 or int64
  Target target = Target::interpreter;
  std::int64_t p = 1, q = 1, right = 1;  // r counts to right
  std::int64_t in_p = 1, out_q = 1;      // strides
  std::int64_t pitch = 16;
  KronLoop left, middle;
  /// Lines of the cache are fetched ahead, from args.ahead_in to read and from args.ahead_out to write: one for so many
  /// vectors of out; 0: none.
  std::int64_t ahead_in = 0, ahead_out = 0;
  bool streams = false;  // out goes past the caches: its rows are whole vectors at multiples of 64 bytes

  /// Equal keys are equal kernels; bytes, no text.
  std::string key() const;
};

struct KronStepArgs {
  const void* in = nullptr;
  const void* factor = nullptr;
  void* out = nullptr;
  const void* ahead_in = nullptr;
  const void* ahead_out = nullptr;
};

}  // namespace mercer::plan
