// Values f = f(0) 2^(rate |x - z|^2): what tiles of products know of rates and norms (rated_halves.cuh,
// rated_floats.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "gemm/bilinear_shared.cuh"

// Rates of which a norm that pieces cannot carry leaves a large exponent, and others a number.
#define LEAST_RATE 0x1p-118f
#define MOST_RATE 0x1p120f
#define MOST_RATED_NORM 0x1p120f  // times the rate
#define POWER_EXPONENT (POWERS == 2 ? 0 : VALUE_EXPONENT)
#define MOST_POWER 10  // of 2^(-2 rate x · z), in pieces of 16 bits

// Norms of a strip of 32 columns, their scale and the largest one, as they come with v (a column that there is not has
// an infinite one); of POWERS == 1 exponents, their scale and the least one.
struct StageNorms {
  u32 columns;
  MERCER_METHOD float scale() const { return shared_float(columns + 32 * 4); }
  MERCER_METHOD float bound() const { return shared_float(columns + 33 * 4); }
  MERCER_METHOD float2 pair(int own) const { return shared_pair(columns + own * 4); }
};
// As `StageNorms`, from the planes of a tile, where all columns are taken for points.
struct PlaneNorms {
  u32 columns;
  int first;
  MERCER_METHOD float scale() const { return shared_float(columns + (2 * PLANE_ROW + first) * 4); }
  MERCER_METHOD float2 pair(int own) const {
    const float2 norm = shared_pair(columns + (first + own) * 4);
    const float2 tail = shared_pair(columns + (PLANE_ROW + first + own) * 4);
    return {norm.x + tail.x, norm.y + tail.y};
  }
};
