// Derivatives of prod, of any order, where terms may be 0.
//
// First derivatives are written with the product P of the terms that are not 0 and their number of zeros, which takes
// one pass and divides by no 0, but says nothing of the slope where a term becomes 0 or ceases to be. So what is to be
// differentiated again is read back (`smooth_products`) into values that have their slopes:
//
//   product(T)   The coefficient of e_1 ... e_r in prod_k T_k, where T_k = t_k + e_1 d_1k + ... has a coefficient T[A]
//                for each set A of the r numbers e, whose squares are 0. A reduce, whose combine multiplies such
//                numbers. Its derivative has one e more: T + e dT.
//   at_zero(T)   That coefficient of the product over all other features, at a feature whose t is 0. It stands only
//                within differentiate() and is written out in the end (`written_products`). Elsewhere the product over
//                the others is the one over all divided by T_k.
//
// With T_k = n_k, free of a number, at the zeros, and Y_m = the product over the others if m of those are zeros,
//
//   G(y) = prod over t_k != 0 of T_k * prod over t_k == 0 of (1 + y n_k),    sum_m Y_m y^m = G(y) / (1 + y n_j),
//
// so Y_m = G_m - n_j Y_(m-1), which is 0 for m > r.
#pragma once

#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

using Terms = std::vector<Expr>;  // coefficients T[A], by A as a mask
inline constexpr int kMostNumbers = 4;  // e_1, e_2, ...

/// product(T).
Expr product_of(const Terms& terms);
Expr at_zero(const Terms& terms);
/// T + e d.
Terms extended(Terms terms, const Terms& d);

/// dR/dt of R = prod(t) at a feature.
Expr prod_weight(const Expr& t);
/// sum_k dR/dt_k d_k.
Expr prod_mean(const Expr& t, const Expr& d);

/// Whether it is product(T) or at_zero(T), with coefficients `product_terms`.
bool is_product(const Expr& reduction);
bool is_at_zero(const Expr& reduction);
Terms product_terms(const Expr& reduction);

/// Its derivative where that of its terms is `d`: along anything but the feature itself.
Expr product_along(const Expr& reduction, const Terms& d);
/// The derivative of product(T) by a feature, where that of the terms is `d`.
Expr product_share(const Expr& reduction, const Terms& d);

/// sum_k c_k at_zero(T)_k, with a c that is 0 where t_k is not.
Expr weighted_sum(const Expr& at_zero, const Expr& c);

/// First derivatives of prod as values that have slopes. `e` itself where there are none.
Expr smooth_products(const Expr& e);
/// The expression without at_zero.
Expr written_products(const Expr& e);

/// Whether it is G_degree of T with so many numbers, as written out where `zero` says of a feature that t is 0.
bool is_part_written(const Expr& e, const Expr& zero, int numbers, int degree);
/// T from G_0 and G_1; or none.
Terms terms_written(const Expr& without_zeros, const Expr& with_one);

}  // namespace mercer::ir
