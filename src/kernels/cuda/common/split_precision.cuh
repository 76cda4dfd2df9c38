// Products of matrices in split precision. A value minus its feature's centre, times a power of two of its point or of
// the 32 of a block (split_operands.cuh), is the sum of two floats of 16 bits,
//
//   2^e (value - centre) = high + low                 22 bits and the sign
//   x · z = 2^-(ex + ez) (high high + high low + low high)
//
// so that three products on tensor cores are as good as one of floats. A sum of squares is |x|^2 + |z|^2 - 2 x · z, of
// the pieces as written; where that cancels, the pair is computed again from the values themselves (repair.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

// d^2 below this part of |x|^2 + |z|^2 is computed again: above it, errors stay below 1e-6 of the distance.
#define CANCELS_BELOW 0.3334f

// What d^2 loses at most of |x|^2 + |z|^2: 2^-22 for low · low, as much for truncation, and a rounding of each; with
// one product (SINGLE) 2^-11 a side.
#define NORMS_LOSE (SINGLE ? 0x1p-10f : 5e-7f)
// What d^2 may lose of the allowance h of values c exp(-s / h) in products with v (mixed.cuh), whatever d^2 is. Norms
// lose no more where they are at most PRODUCTS_MAY_LOSE / NORMS_LOSE times h; so pairs are computed again where
//
//   d^2 + SLACK_OF_ALLOWANCE h < CANCELS_BELOW (|x|^2 + |z|^2)
#define PRODUCTS_MAY_LOSE 1.2e-6f
#define SLACK_OF_ALLOWANCE (CANCELS_BELOW * PRODUCTS_MAY_LOSE / NORMS_LOSE)

// Stands for the squared norm of a point that pieces cannot carry (range, infinities, NaN): below any sum of norms, so
// that all of its pairs seem to cancel.
#define NOT_CARRIED -1.5e38f

MERCER_INLINE bool products_stand(const SplitState& s) { return s.sampled <= s.most_sampled; }
