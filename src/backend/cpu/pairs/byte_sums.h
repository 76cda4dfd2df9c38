// Exact sums over the features of pairs of uint8 or int8 points. One source, compiled per instruction set
// (byte_sums.inc).
//
//   x z        sums of u8 * s8: one factor is moved by 128, which a term of its point makes good
//   (x - z)^2  |x|^2 + |z|^2 - 2 x z: whole numbers, so nothing is lost where they cancel
//   |x - z|    sums of absolute differences of 8 bytes each; the largest one by unsigned maxima
//
//            z: [group][cols][bytes of a group]      features of a group side by side, as lanes of columns take them
//   x ──▶ one group, in all lanes                    a block of at most 8 x 3 accumulators of 32 bits
#pragma once

#include <cstdint>

#include "mercer/device.h"
#include "plan/cpu/forms.h"

namespace mercer::cpu {

/// Bytes of a group of features: what one lane of the instruction adds up.
constexpr int group_bytes(plan::cpu::PairSum sum) { return sum == plan::cpu::PairSum::absolute ? 8 : 4; }

/// A value is row_terms[r] + col_terms[c] + factor * sum, modulo 2^32 and then at least 0 or a product.
struct ByteBlock {
  const std::uint8_t* x;             // lines of rows
  std::int64_t x_stride;             // bytes
  const std::uint8_t* z;             // a panel
  int cols;                          // of the panel
  std::int64_t rows, groups;
  const std::int32_t *row_terms, *col_terms;
  std::int32_t factor;
  float* out;                        // [rows][cols]
  std::int64_t out_stride;           // elements
};

/// The sums over the features of a point.
struct ByteLine {
  std::int32_t sum = 0, squares = 0;
};

struct ByteKernels {
  /// Rows of products have a group of features as two pairs of 16 bits, first those of even places, and not as bytes.
  bool wide_rows;
  void (*sums[plan::cpu::kPairSums])(const ByteBlock& block);  // by PairSum; products serve squares too
  ByteLine (*of_unsigned)(const std::uint8_t* line, std::int64_t count);
  ByteLine (*of_signed)(const std::int8_t* line, std::int64_t count);
};

/// The kernels of a target on this processor.
const ByteKernels& byte_kernels(Target target);

const ByteKernels& byte_kernels_baseline();
const ByteKernels& byte_kernels_avx2();
const ByteKernels& byte_kernels_avx512();  // with VNNI

}  // namespace mercer::cpu
