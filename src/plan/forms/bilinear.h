// Sums that a product of two matrices computes (docs/kernels/bilinear.md):
//
//   sum c u w x z        = c (u w x) · z
//   sum c u w (x - z)^2  = c (|x'|^2 + |z'|^2 - 2 x' · z')     x' = sqrt(u w) (x - centre), z' likewise
//
// where x and z stand for anything of one side, and u is a product of parameters and of their reciprocals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/passes/split.h"

namespace mercer::plan {

enum class BilinearKind : std::uint8_t { none, product, square };

/// A parameter (ir::Split::param_leaves) or what divides by it.
struct UniformFactor {
  int slot = 0;
  bool divides = false;
};

struct Bilinear {
  BilinearKind kind = BilinearKind::none;
  double factor = 1;      // c, a normal number
  Expr weight;            // of w alone, times which the term is; empty: it is not
  Expr multiplier;        // of the operands: the weight, on one side; of squares its root, on both
  std::string multiplier_text;  // which names kernels
  std::vector<UniformFactor> uniforms;  // of u, at most kMostUniforms; operands have it, within 2^±100
  static constexpr std::size_t kMostUniforms = 8;
  bool weighted() const { return !weight.empty(); }
  explicit operator bool() const { return kind != BilinearKind::none; }
  /// c u, of the parameters of the split.
  Expr uniform_factor(const std::vector<Expr>& params) const;
  std::string to_text() const;
};

/// What the only reduction of a split is; `none` where it has several, or another one.
Bilinear bilinear_of(const ir::Split& split);

}  // namespace mercer::plan
