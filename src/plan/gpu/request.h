// What a call asks of a GPU, without a word about how: ways (ways.h) offer plans for it.
#pragma once

#include <cstdint>

#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"
#include "plan/backward/side_sums.h"
#include "plan/gpu/field.h"
#include "plan/ways.h"

namespace mercer::plan {

/// Bytes of values of pairs that are stored at once for a second kernel.
inline constexpr std::int64_t kPartBytes = std::int64_t{256} << 20;
/// The rows that are stored at once, of m rows of so many bytes: as many as fit, a multiple of the panels' padding.
std::int64_t rows_of_part(std::int64_t m, std::int64_t row_bytes, std::int64_t part_bytes);

struct RequestDevice {
  int capability = 90;  // compute capability: 80, 86, 89, 90, 100, 120
  int multiprocessors = 132;
  std::int64_t shared_per_block = 232448;
  bool by_warps = false;  // products of warps, where it has those of warpgroups too
};

/// What a gradient's pairs are weighed with, and what the same pass has in addition to it.
struct GradientRequest {
  FieldWeights::Kind weights = FieldWeights::Kind::coefficients;
  bool converts = false;  // a matrix of weights is not of the computing type
  StoredValues matrix = StoredValues::padded;  // how it lies
  SideSums side_sums;
};

/// Points on both sides as the kernels walk them: of an output that is stored by columns the sides are swapped.
struct Request {
  Verb verb = Verb::pairwise;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t columns = 1;       // of v, the neighbours of a point, or the outputs or factors of a gradient
  Dtype type = Dtype::float32;    // computing type
  Dtype points = Dtype::float32;  // what the points are stored as
  Dtype out = Dtype::float32;     // what values are stored as
  ReduceKind fold = ReduceKind::sum;
  bool symmetric = false;  // only one of two halves of the pairs is computed
  bool by_value = false;   // all parameters are numbers
  Precision precision = Precision::fp32;
  std::int64_t part_bytes = kPartBytes;
  RequestDevice device;
  GradientRequest gradient;

  double pairs() const { return static_cast<double>(m) * static_cast<double>(n); }
};

}  // namespace mercer::plan
