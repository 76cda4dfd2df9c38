// Squares of differences, expanded: with u = x - centre, w = z - centre and g the rate of f = f(0) 2^(g |x - z|^2),
//
//   sum_n f(x_m, z_n) v_n = f(0) 2^(g |u_m|^2)  sum_n 2^(-2 g u_m · w_n)  (2^(g |w_n|^2) v_n)
//
// Where a weight of each feature is a factor of its square, u and w have the root of it. Parameters that are factors of
// all squares are in g.
//
// A pair takes one multiply-add a feature instead of two additions, and no factor: -2 g goes into u. What the exponent
// of a pair loses is the rounding of each multiply-add, 2^-24 of the sum so far: at most 2 |g| |u| |w| of the features
// in it, added up, which by Cauchy and Schwarz is at most 2 |g| times the roots of both sides' `most_partial`. Two sums
// of half of the features each, from four on, lose less. Where the loss stays below EXPANDED_TOLERANCE of f, and v
// times its factor a normal number, and v finite, the expanded tile stands, elsewhere that of differences: the device
// decides.
//
// TIMES_MANY columns of v are multiplied by products of matrices, in pieces of 16 bits (wide_fold.cuh), and so are the
// exponents (expanded_chunks.cuh). The whole powers of two in the factors of u and w go into the exponents of the
// pairs' values, with EXPANDED_EXPONENT, so that these are at most that; sums and v take the rests, up to 2 each.
// Pieces lose 2^-25 of a value. With the mean square t^2 of the norms |w| and the mean q of w, both weighted by |v|,
// the convexity of powers of two bounds the sum that this is a part of from below:
//
//   sum_n f(u, w_n) |v_n|  >=  f(0) 2^(g (|u|^2 + 2 |u| |q| + t^2)) sum_n |v_n|
//
// Pieces of v lose 2^-39 of the largest of 32 points, of values that are at most f(0). The means of all points are at
// most the largest of the means of some, and that is what blocks find.
#pragma once

// Chunks of eight 16-bit floats that a point has: features as multiples of a step, the whole power and a one, then what
// the steps leave.
#define STEP_CHUNKS ((FEATURES_OF_EXPANDED + 9) / 8)
#define REST_CHUNKS ((5 * FEATURES_OF_EXPANDED + 7) / 8)
#define CHUNKS (STEP_CHUNKS + REST_CHUNKS)
// Each product truncates the exponents once: where there are several of rests, these are added up by themselves.
#define REST_PRODUCTS ((REST_CHUNKS + 1) / 2)
#define RESTS_APART (REST_PRODUCTS > 1)
#define FIRST_FEATURES (FEATURES_OF_EXPANDED < 4 ? FEATURES_OF_EXPANDED : (FEATURES_OF_EXPANDED + 1) / 2)  // of a sum
