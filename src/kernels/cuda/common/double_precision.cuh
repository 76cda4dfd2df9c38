// Sums that are products of matrices, in float64 on tensor cores: operands in an image (double_operands.cuh), the tile
// of pairs (double_products.cuh). A sum of squares is |x|^2 + |z|^2 - 2 x · z of centred points; where that cancels the
// pair is computed again from the values themselves.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

// Squares below this part of |x|^2 + |z|^2: above it, K roundings of the three sums err no more than eight direct ones.
#define DOUBLE_CANCELS_BELOW 0.125

MERCER_INLINE bool products_stand(const SplitState& s) { return s.sampled <= s.most_sampled; }

// Feature k of point p lies in row k of its panel of 64 points, at this place: lanes that read four features of a few
// points at once meet in no bank.
MERCER_INLINE int place_in_image(int p, int k) { return p ^ (k & 3) << 2; }
