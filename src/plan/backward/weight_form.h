// Gradients by the weights w, which are no pass of their own. Where each term that a formula adds up over the features
// is a factor c(w) times a function of degree d of the points, its derivative by x is c F, and Euler's theorem on
// homogeneous functions has
//
//   sum_mn W_mn df/dw_k = c'(w_k) / d * (sum_m x_mk F_mk + sum_n z_nk G_nk)
//
// with F_mk = sum_n W_mn df/dx_mk / c(w_k), and G the same of z. Either side is enough for products of x and z. Terms
// of x - z know no origin: points less a common centre lose fewer digits.
#pragma once

#include "mercer/formula.h"

namespace mercer::plan {

struct WeightForm {
  Expr weight, slope;  // c and c' / d, over row in place of w
  bool of_both_sides = true, of_differences = false;
  explicit operator bool() const { return !weight.empty(); }
};
/// An empty one where terms are none of these, or not alike.
WeightForm weight_form(const Expr& f);

}  // namespace mercer::plan
