// Plans of gradient fields on GPUs (kernels/cuda/field.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/split.h"

namespace mercer::plan {

/// φ = scale [w] amplitude of the pair, factor of the feature (kernels/cuda/field_products.cuh).
struct FieldFactors {
  enum class Kind : std::uint8_t { none, sign, values };
  Kind kind = Kind::none;
  Expr amplitude, factor;  // over pair values and parameters; over x, z, w and parameters; sign: sign(x - z)
  double scale = 1;
  bool weighted = false;
  explicit operator bool() const { return kind != Kind::none; }
  std::string to_text() const;
};
/// `none` where φ has no such form.
FieldFactors factors_of(const Expr& field);

/// Whether a call of these sizes runs on tensor cores; `from`: least pairs times features, 0 for all sizes.
/// Features of a block of products.
inline constexpr std::int64_t kFieldTileFeatures = 192;
bool pays_field_products(std::int64_t m, std::int64_t n, std::int64_t k, double from);

struct GpuFieldProblem {
  ir::FieldSplit field;
  Dtype type = Dtype::float32;  // computing type
  int outputs = 1;              // coefficients of one pass
  int planes = 0;               // pair values
  int product_outputs = 0;      // of a pass on tensor cores, where φ has factors; 0: none
  int cluster = 1;              // blocks of products that share coefficients times amplitudes, 1 or 2
  std::int64_t shared_per_block = 232448;
};

struct GpuFieldPlan {
  GpuFieldProblem problem;
  ir::Program program;   // one output: φ
  ir::Program uniforms;  // float64
  int thread_r = 4, thread_f = 4;
  bool reads_row = false, reads_col = false, reads_weights = false;
  FieldFactors factors;  // of products
  ir::Program amplitude, factor;

  /// Columns of coefficients that a product has: 8, 16 or 32.
  int product_columns() const { return problem.product_outputs <= 8 ? 8 : problem.product_outputs <= 16 ? 16 : 32; }
  int product_queries() const { return 64 / product_columns(); }
  /// Points m whose products go together; twice as many have left operands in registers.
  int product_batch() const { return std::min(2, product_queries() / 2); }
  bool of_signs() const { return factors.kind == FieldFactors::Kind::sign; }
  /// Bytes of 16 features and 16 points in the image of z.
  std::int64_t group_bytes() const { return of_signs() ? 512 : 1024; }
  int product_stages() const;
  /// Stages of coefficients and amplitudes, which are read before.
  int product_inputs() const { return product_columns() == 32 ? 2 : 3; }
  std::int64_t product_shared_bytes(int stages) const;
  int tile_r() const { return 16 * thread_r; }
  int tile_f() const { return 16 * thread_f; }
  std::int64_t shared_bytes(std::int64_t n) const;
};

/// Coefficients that one pass takes at most; more take several.
inline constexpr std::int64_t kFieldOutputs = 16, kProductOutputs = 32;

std::shared_ptr<const GpuFieldPlan> plan_gpu_field(const GpuFieldProblem& problem);

}  // namespace mercer::plan
