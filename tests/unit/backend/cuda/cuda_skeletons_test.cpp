// Every skeleton for every generation of GPUs, compiled without one: the code compiles, a block gets the registers and
// the shared memory that its launch asks for, and spills stay where they were. tests/golden/cuda_kernels.txt holds what
// ptxas said last, and kernels that are as recorded there are not compiled again; MERCER_UPDATE_GOLDEN=1 compiles all
// and writes it anew, MERCER_UPDATE_GOLDEN=changed leaves out those that are as recorded.
//
// The compiler's versions differ in registers and spills a little, so the file is a bound: more is allowed below.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "backend/cuda/runtime/kernels.h"
#include "codegen/cuda/cuda_source.h"
#include "codegen/cuda/kron_cuda.h"
#include "core/sanitized.h"
#include "core/system/parallel.h"
#include "device/nvrtc.h"
#include "ir/passes/passes.h"
#include "ir/passes/safe_field.h"
#include "plan/gpu/floor.h"
#include "plan/gpu/rank_field_tile.h"
#include "plan/gpu/stored_sums.h"
#include "plan/gpu/stored_ways.h"
#include "plan/gpu/sums/bare_sums.h"
#include "plan/gpu/value_products.h"
#include "plan/gpu/ways.h"
#include "unit/backend/cuda/recorded_kernels.h"
#include "unit/backend/unkept_plans.h"

namespace mercer::cuda {
namespace {

using plan::Consumer;
using plan::GpuSizes;

constexpr int kMoreRegisters = 24, kMoreSpillBytes = 64;

struct Sizes {
  std::int64_t m = 8192, n = 8192, k = 1000;
};
constexpr Sizes kWhole{8192, 8192, 1024}, kSeveral{8192, 8192, 100}, kSome{8192, 8192, 32}, kLess{8192, 8192, 20},
    kSixteen{8192, 8192, 16}, kFew{8192, 8192, 4}, kThree{8192, 8192, 3}, kFewPairs{700, 700, 1000},
    kVeryFewPairs{200, 200, 1000}, kDirect{200, 200, 20}, kTall{8192, 20, 1000}, kFlat{20, 8192, 1000},
    kTiny{20, 20, 1000};

/// One tile, with the kernels around it, as a way plans it that no size is too small for.
struct TileRow {
  const char* name;
  const char* text;
  Sizes sizes = {};
  Consumer consumer = Consumer::store;
  ReduceKind fold = ReduceKind::sum;
  int columns = 1;
  Dtype points = Dtype::float32;
  Dtype out = Dtype::float32;
  bool everywhere = false;  // else for sm_90a alone
  const char* way = nullptr;  // else one without products of matrices
  bool by_warps = false, subtracts = false;
  bool differences = false;  // squares of few features are not expanded, as in smaller calls
};

constexpr const char* kL1 = "sum(abs(x-z))";
constexpr const char* kLaplace = "exp(-sum(abs(x-z))/b)";
constexpr const char* kCubes = "sum(abs(x-z)^3)^(1/3)";
constexpr const char* kGauss = "exp(-sum(square(x-z))/(2*b^2))";
constexpr const char* kLong = "expm1(tanh(sin(sum(x*z)/8)))*b";
constexpr const char* kTwoSums = "exp(-sum(square(x-z))/b)*sum(x*z)";

const TileRow kTiles[] = {
    // A tile of plan/gpu/plan.cpp each.
    {.name = "wide", .text = kL1, .everywhere = true},
    {.name = "long", .text = "sum(where(abs(x-z) < 1, square(x-z)/2, abs(x-z)-0.5))"},
    {.name = "two-units", .text = "sum(abs(x-z)^1.3)", .everywhere = true},
    {.name = "parameter-power", .text = "sum(abs(x-z)^p)"},
    {.name = "one-unit", .text = "sum(sqrt(abs(x-z)))"},
    {.name = "whole-slices", .text = kL1, .sizes = kWhole},
    {.name = "deep", .text = kL1, .sizes = kSeveral},
    {.name = "stores", .text = kGauss, .sizes = kSeveral},
    {.name = "some-features", .text = kGauss, .sizes = kSome},
    {.name = "less-than-a-slice", .text = kL1, .sizes = kLess},
    {.name = "rows", .text = kLaplace, .sizes = kThree, .consumer = Consumer::product, .columns = 1},
    {.name = "first-update", .text = kL1, .sizes = kSixteen},
    {.name = "few-features", .text = kL1, .sizes = kFew, .everywhere = true},
    {.name = "few-pairs", .text = kGauss, .sizes = kFewPairs},
    {.name = "very-few-pairs", .text = kL1, .sizes = kVeryFewPairs},
    {.name = "direct", .text = kL1, .sizes = kDirect, .everywhere = true},
    {.name = "direct-float16", .text = kL1, .sizes = kDirect, .points = Dtype::float16},
    {.name = "tall", .text = kL1, .sizes = kTall},
    {.name = "flat", .text = kL1, .sizes = kFlat, .everywhere = true},
    {.name = "tiny", .text = kL1, .sizes = kTiny},
    // Several kernels for a call.
    {.name = "mixed", .text = kL1, .sizes = kWhole, .way = "dual_pipe"},
    {.name = "squares", .text = "sum(square(x-z))", .sizes = kWhole, .way = "tensor_core_differences"},
    {.name = "cubes", .text = "sum(abs(x-z)^3)^(1/3)", .sizes = kWhole, .way = "tensor_core_differences"},
    {.name = "mixed-product-1", .text = kLaplace, .sizes = {100000, 100000, 16}, .consumer = Consumer::product,
     .way = "dual_pipe"},
    {.name = "mixed-product-16", .text = kLaplace, .sizes = {10000, 10000, 784}, .consumer = Consumer::product,
     .columns = 16, .way = "dual_pipe"},
    {.name = "expanded-3", .text = kGauss, .sizes = {100000, 100000, 3}, .consumer = Consumer::product,
     .everywhere = true, .way = "expanded"},
    {.name = "expanded-8", .text = kGauss, .sizes = {100000, 100000, 8}, .consumer = Consumer::product,
     .way = "expanded"},
    {.name = "expanded-wide", .text = kGauss, .sizes = {100000, 100000, 5}, .consumer = Consumer::product,
     .columns = 16, .way = "mma_rhs"},
    {.name = "expanded-wide-3", .text = kGauss, .sizes = {100000, 100000, 3}, .consumer = Consumer::product,
     .columns = 32, .way = "mma_rhs"},
    {.name = "expanded-wide-8", .text = kGauss, .sizes = {100000, 100000, 8}, .consumer = Consumer::product,
     .columns = 16, .way = "mma_rhs"},
    {.name = "bilinear", .text = "sum(square(x-z))", .sizes = kWhole, .everywhere = true, .way = "gemm_sum"},
    {.name = "bilinear-warps", .text = kGauss, .sizes = kWhole, .everywhere = true, .way = "gemm_sum",
     .by_warps = true},
    {.name = "bilinear-product-16-warps", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 16, .everywhere = true, .way = "gemm_sum", .by_warps = true},
    {.name = "bilinear-weights", .text = "exp(-sum(w*square(x-z))/b)", .sizes = kWhole, .way = "gemm_sum"},
    {.name = "bilinear-cosine", .text = "sum(x*z)/sqrt(sum(x*x)*sum(z*z))", .sizes = kWhole, .way = "gemm_sum"},
    {.name = "bilinear-brief", .text = kGauss, .sizes = {8192, 8192, 64}, .way = "gemm_sum"},
    {.name = "bilinear-small", .text = kGauss, .sizes = {2048, 2048, 256}, .way = "gemm_sum"},
    {.name = "bilinear-product-1", .text = kGauss, .sizes = {50000, 50000, 256}, .consumer = Consumer::product,
     .way = "gemm_sum"},
    {.name = "bilinear-product-16", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 16, .way = "gemm_sum"},
    {.name = "bilinear-product-d20-16", .text = kGauss, .sizes = {50000, 50000, 20}, .consumer = Consumer::product,
     .columns = 16, .way = "gemm_sum"},
    {.name = "bilinear-product-brief-1", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .way = "gemm_sum"},
    {.name = "bilinear-product-brief-4", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 4, .way = "gemm_sum"},
    {.name = "bilinear-product-64", .text = kGauss, .sizes = {50000, 50000, 256}, .consumer = Consumer::product,
     .columns = 64, .way = "gemm_sum"},
    {.name = "bilinear-product-brief-64", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 64, .way = "gemm_sum"},
    {.name = "bilinear-product-512", .text = kGauss, .sizes = {10000, 10000, 784}, .consumer = Consumer::product,
     .columns = 512, .way = "gemm_sum"},
    {.name = "bilinear-product-brief-512", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 512, .way = "gemm_sum"},
    {.name = "bilinear-product-brief-128", .text = kGauss, .sizes = {50000, 50000, 64}, .consumer = Consumer::product,
     .columns = 128, .way = "gemm_sum"},
    {.name = "wide-128", .text = kGauss, .sizes = {100000, 100000, 5}, .consumer = Consumer::product, .columns = 128,
     .way = "mma_rhs"},
    {.name = "wide-16", .text = kGauss, .sizes = {100000, 100000, 3}, .consumer = Consumer::product, .columns = 16,
     .way = "mma_rhs", .differences = true},
    {.name = "wide-64", .text = "exp(-sum(w*abs(x-z))/b)*row", .sizes = {100000, 100000, 16},
     .consumer = Consumer::product, .columns = 64, .way = "mma_rhs"},
    {.name = "bilinear-argmin", .text = "sum(square(x-z))", .sizes = {50000, 50000, 256}, .consumer = Consumer::fold,
     .fold = ReduceKind::argmin, .out = Dtype::int64, .way = "gemm_sum"},
    {.name = "bilinear-logsumexp", .text = "-sum(square(x-z))/b", .sizes = {50000, 50000, 64},
     .consumer = Consumer::fold, .fold = ReduceKind::logsumexp, .way = "gemm_sum"},
    {.name = "bilinear-nearest", .text = "sqrt(sum(square(x-z)))", .sizes = {50000, 50000, 256},
     .consumer = Consumer::nearest, .way = "candidates"},
    {.name = "bilinear-nearest-brief", .text = "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))", .sizes = {50000, 50000, 64},
     .consumer = Consumer::nearest, .way = "candidates"},
    {.name = "bilinear-nearest-warps", .text = "sqrt(sum(square(x-z)))", .sizes = {50000, 50000, 256},
     .consumer = Consumer::nearest, .everywhere = true, .way = "candidates", .by_warps = true},
    {.name = "bilinear-long", .text = kLong, .sizes = kWhole, .way = "gemm_sum"},
    {.name = "bilinear-subtracts", .text = "sum(x*z)", .sizes = kWhole, .everywhere = true, .way = "gemm_sum",
     .subtracts = true},
    // Sums in planes: all, or some.
    {.name = "planes", .text = kTwoSums, .sizes = kWhole, .everywhere = true, .way = "precomputed_sums"},
    {.name = "planes-and-states", .text = "exp(-sum(abs(x-z))/b) + sum(x*z)", .sizes = kWhole,
     .way = "precomputed_sums"},
    {.name = "planes-product-16", .text = kTwoSums, .sizes = kWhole, .consumer = Consumer::product, .columns = 16,
     .way = "precomputed_sums"},
    {.name = "planes-float64", .text = kTwoSums, .sizes = kWhole, .points = Dtype::float64, .out = Dtype::float64,
     .way = "precomputed_sums"},
    // Products of matrices in float64.
    {.name = "doubles", .text = "sum(square(x-z))", .sizes = kWhole, .points = Dtype::float64, .out = Dtype::float64,
     .everywhere = true, .way = "gemm_sum_float64"},
    {.name = "doubles-gauss", .text = kGauss, .sizes = kWhole, .points = Dtype::float64, .out = Dtype::float64,
     .way = "gemm_sum_float64"},
    {.name = "doubles-dot", .text = "sum(w*x*z)", .sizes = kSeveral, .points = Dtype::float64, .out = Dtype::float64,
     .way = "gemm_sum_float64"},
    {.name = "doubles-few", .text = kGauss, .sizes = kFewPairs, .points = Dtype::float64, .out = Dtype::float64,
     .way = "gemm_sum_float64"},
    {.name = "doubles-product-1", .text = kGauss, .sizes = kWhole, .consumer = Consumer::product,
     .points = Dtype::float64, .out = Dtype::float64, .way = "gemm_sum_float64"},
    {.name = "doubles-product-16", .text = kGauss, .sizes = kWhole, .consumer = Consumer::product, .columns = 16,
     .points = Dtype::float64, .out = Dtype::float64, .everywhere = true, .way = "gemm_sum_float64"},
    {.name = "doubles-argmin", .text = "sum(square(x-z))", .sizes = kWhole, .consumer = Consumer::fold,
     .fold = ReduceKind::argmin, .points = Dtype::float64, .out = Dtype::int64, .way = "gemm_sum_float64"},
    // Types.
    {.name = "float64", .text = kGauss, .points = Dtype::float64, .out = Dtype::float64, .everywhere = true},
    {.name = "float64-power", .text = "sum(abs(x-z)^p)", .points = Dtype::float64, .out = Dtype::float64},
    {.name = "float16", .text = kL1, .points = Dtype::float16, .out = Dtype::float16},
    {.name = "bfloat16", .text = kL1, .points = Dtype::bfloat16, .out = Dtype::bfloat16},
    {.name = "bytes", .text = kL1, .points = Dtype::uint8, .everywhere = true},
    {.name = "uint8", .text = "sum(x != z)/K", .points = Dtype::uint8},
    // Formulas.
    {.name = "maximum", .text = "max(abs(x-z))"},
    {.name = "product", .text = "prod(1 + x*z)"},
    {.name = "logsumexp", .text = "logsumexp(x*z)", .everywhere = true},
    {.name = "two-states", .text = "sum(abs(x-z))/sum(abs(x+z))"},
    {.name = "stages", .text = "sum(square(x/sqrt(sum(x*x)) - z/sqrt(sum(z*z))))/2"},
    {.name = "weights-and-points", .text = "sum(w*abs(x-z)^p*row)*col + i + j", .everywhere = true},
    {.name = "long-epilogue", .text = kLong, .everywhere = true},
    {.name = "no-reduction", .text = "row*col + i"},
    // Products and folds.
    {.name = "product-1", .text = kL1, .consumer = Consumer::product, .everywhere = true},
    {.name = "product-16", .text = kGauss, .consumer = Consumer::product, .columns = 16, .everywhere = true},
    {.name = "product-few", .text = kGauss, .sizes = kFew, .consumer = Consumer::product},
    {.name = "product-long", .text = kLong, .consumer = Consumer::product},
    {.name = "product-float64", .text = kGauss, .consumer = Consumer::product, .points = Dtype::float64,
     .out = Dtype::float64},
    {.name = "nearest", .text = kL1, .consumer = Consumer::nearest, .everywhere = true},
    {.name = "nearest-long", .text = kLong, .consumer = Consumer::nearest},
    {.name = "fold-sum", .text = kL1, .consumer = Consumer::fold},
    {.name = "fold-max", .text = kL1, .consumer = Consumer::fold, .fold = ReduceKind::max},
    {.name = "fold-argmin", .text = kL1, .consumer = Consumer::fold, .fold = ReduceKind::argmin, .out = Dtype::int64,
     .everywhere = true},
    {.name = "fold-logsumexp", .text = kL1, .consumer = Consumer::fold, .fold = ReduceKind::logsumexp},
    {.name = "fold-float64", .text = kL1, .consumer = Consumer::fold, .fold = ReduceKind::argmin,
     .points = Dtype::float64, .out = Dtype::int64},
};

/// A gradient: the field, and the tile of its pair values.
struct FieldRow {
  const char* name;
  const char* text;
  int outputs = 1;
  Dtype type = Dtype::float32;
  bool everywhere = false;
  bool tensor_cores = false;
  bool wide = false;  // the tile of products
  bool linear = false;
  int few_features = 0;
  int sums = 0;  // in the gradient's pass; of few features or one output the product with v too
  int rank_features = 0;  // whose pairs weigh products of `outputs` factors, or a matrix
  std::int64_t of_product = 0;  // of stored values with so many columns of v
  plan::StoredValues lie = plan::StoredValues::padded;
  bool by_matrix = false;       // weighed with one
  bool by_weights = false;  // sums by w in the gradient's pass
  bool beyond = false;          // made again at the ends of the range

  plan::FieldWeights::Kind kind() const {
    using Kind = plan::FieldWeights::Kind;
    return by_matrix ? Kind::matrix : sums > 0 || rank_features > 0 ? Kind::factors : Kind::coefficients;
  }
};

const FieldRow kFields[] = {
    {.name = "gradient-l1", .text = kL1},
    {.name = "gradient-gauss", .text = kGauss},
    {.name = "gradient-gauss-16", .text = kGauss, .outputs = 16},
    {.name = "gradient-power-16", .text = "sum(w*abs(x-z)^p)^(1/p)", .outputs = 16, .everywhere = true},
    {.name = "gradient-cosine", .text = "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))"},
    {.name = "gradient-signs-1", .text = kL1, .tensor_cores = true},
    {.name = "gradient-signs-16", .text = "exp(-sum(abs(x-z))/b)", .outputs = 16, .tensor_cores = true},
    {.name = "gradient-signs-32", .text = kL1, .outputs = 32, .tensor_cores = true},
    {.name = "gradient-signs-64", .text = kL1, .outputs = 64, .tensor_cores = true},
    {.name = "gradient-values-1", .text = kGauss, .tensor_cores = true},
    {.name = "gradient-values-16", .text = "sum(abs(x-z)^1.3)^(1/1.3)", .outputs = 16, .tensor_cores = true},
    {.name = "gradient-wide-16",
     .text = "sum(abs(x-z)^1.3)^(1/1.3)",
     .outputs = 16,
     .tensor_cores = true,
     .wide = true},
    {.name = "gradient-values-32", .text = kGauss, .outputs = 32, .tensor_cores = true},
    {.name = "gradient-linear-1", .text = kGauss, .linear = true},
    {.name = "gradient-linear-16", .text = kGauss, .outputs = 16, .everywhere = true, .linear = true},
    {.name = "gradient-linear-products", .text = "sum(w*x*z)^3", .outputs = 16, .linear = true},
    {.name = "value-product", .text = kL1, .everywhere = true, .of_product = 512},
    {.name = "value-product-64", .text = kL1, .of_product = 64},
    {.name = "value-product-104", .text = kL1, .of_product = 104},
    {.name = "value-product-rows-104", .text = kL1, .of_product = 104, .lie = plan::StoredValues::rows},
    {.name = "value-product-columns-64", .text = kL1, .of_product = 64, .lie = plan::StoredValues::columns},
    {.name = "value-product-columns-104", .text = kL1, .of_product = 104, .lie = plan::StoredValues::columns},
    {.name = "value-product-float64", .text = kL1, .type = Dtype::float64, .everywhere = true, .of_product = 64},
    {.name = "value-product-float64-32", .text = kL1, .type = Dtype::float64, .of_product = 32},
    {.name = "gradient-linear-float64", .text = kGauss, .outputs = 16, .type = Dtype::float64, .linear = true},
    {.name = "backward-stored-16", .text = "exp(-sum(abs(x-z))/b)", .outputs = 16, .everywhere = true, .sums = 1},
    {.name = "gradient-few-3", .text = kGauss, .everywhere = true, .few_features = 3},
    {.name = "gradient-few-3-10", .text = "exp(-sum(abs(x-z))/b)", .outputs = 10, .few_features = 3},
    {.name = "gradient-few-16", .text = "sum(abs(x-z)^1.3)^(1/1.3)", .few_features = 16},
    {.name = "backward-few-3", .text = kGauss, .few_features = 3, .sums = 1},
    {.name = "backward-few-3-16", .text = kGauss, .outputs = 16, .few_features = 3, .sums = 1},
    {.name = "backward-few-3-weights", .text = "exp(-sum(w*(x-z)^2)/b)", .everywhere = true, .few_features = 3,
     .sums = 1, .by_weights = true},
    {.name = "backward-few-16-16-weights", .text = "exp(-sum(w*(x-z)^2)/b)", .outputs = 16, .few_features = 16,
     .sums = 1, .by_weights = true},
    {.name = "backward-few-16-4", .text = "row*exp(-sum(abs(x-z))/b)", .outputs = 4, .few_features = 16, .sums = 2},
    {.name = "gradient-rank-64", .text = kGauss, .rank_features = 64},
    {.name = "gradient-rank-64-of-16", .text = kGauss, .outputs = 16, .rank_features = 64},
    {.name = "gradient-rank-64-of-64", .text = kGauss, .outputs = 64, .rank_features = 64},
    {.name = "gradient-rank-64-of-512", .text = kGauss, .outputs = 512, .rank_features = 64},
    {.name = "gradient-rank-20", .text = kGauss, .rank_features = 20},
    {.name = "gradient-rank-20-of-16", .text = kGauss, .outputs = 16, .rank_features = 20},
    {.name = "gradient-rank-128", .text = "exp(-sqrt(sum((x-z)^2))/h)", .rank_features = 128},
    {.name = "backward-rank-64", .text = kGauss, .sums = 1, .rank_features = 64},
    {.name = "backward-rank-64-of-16", .text = "(1+sqrt(3*sum((x-z)^2))/b)*exp(-sqrt(3*sum((x-z)^2))/b)", .outputs = 16,
     .sums = 1, .rank_features = 64},
    {.name = "backward-rank-64-of-8", .text = kGauss, .outputs = 8, .sums = 1, .rank_features = 64},
    {.name = "backward-rank-20-of-16", .text = kGauss, .outputs = 16, .sums = 1, .rank_features = 20},
    {.name = "backward-rank-128-of-16", .text = kGauss, .outputs = 16, .sums = 1, .rank_features = 128},
    {.name = "backward-matrix-3", .text = kGauss, .few_features = 3, .sums = 1, .by_matrix = true},
    {.name = "backward-matrix-20", .text = kGauss, .sums = 1, .rank_features = 20, .by_matrix = true},
    {.name = "backward-matrix-64", .text = "(1+sqrt(3*sum((x-z)^2))/b)*exp(-sqrt(3*sum((x-z)^2))/b)", .sums = 1,
     .rank_features = 64, .by_matrix = true},
    {.name = "backward-matrix-128", .text = kGauss, .rank_features = 128, .by_matrix = true},
    {.name = "gradient-few-float64", .text = kGauss, .type = Dtype::float64, .few_features = 3},
    {.name = "gradient-float64", .text = kGauss, .outputs = 4, .type = Dtype::float64},
    {.name = "gradient-cubes", .text = kCubes, .everywhere = true, .beyond = true},
    {.name = "gradient-cubes-16", .text = kCubes, .outputs = 16, .beyond = true},
    {.name = "gradient-cubes-products", .text = kCubes, .outputs = 16, .tensor_cores = true, .beyond = true},
    {.name = "gradient-cubes-float64", .text = kCubes, .outputs = 4, .type = Dtype::float64, .beyond = true},
    {.name = "gradient-cubes-few-3", .text = kCubes, .everywhere = true, .few_features = 3, .beyond = true},
    {.name = "gradient-cubes-few-3-10", .text = kCubes, .outputs = 10, .few_features = 3, .beyond = true},
    {.name = "gradient-cubes-few-16", .text = kCubes, .few_features = 16, .beyond = true},
    {.name = "gradient-cubes-few-float64", .text = kCubes, .type = Dtype::float64, .few_features = 3, .beyond = true},
    {.name = "backward-cubes-few-3-weights", .text = "log(sum(w*abs(x-z)^3))", .few_features = 3, .by_matrix = true,
     .by_weights = true, .beyond = true},
};

struct Kernel {
  std::string name;
  jit::CudaSource source;
  std::int64_t threads = 256, blocks = 1, shared_bytes = 0;
};

plan::Verb verb_of(Consumer consumer) {
  switch (consumer) {
    case Consumer::product: return plan::Verb::product;
    case Consumer::fold: return plan::Verb::reduce;
    case Consumer::nearest: return plan::Verb::nearest;
    default: return plan::Verb::pairwise;
  }
}

const plan::Way& way_of(const TileRow& row) {
  const std::string name = row.way != nullptr ? row.way : row.consumer == Consumer::nearest ? "candidates" : "direct";
  const auto ways = plan::ways_of(verb_of(row.consumer));
  return **std::find_if(ways.begin(), ways.end(), [&](const plan::Way* way) { return way->name == name; });
}

/// Kernels for one target, equal texts once.
class Collection {
 public:
  explicit Collection(const std::string& target)
      : target_(target), gpu_(plan::gpu_info(std::stoi(target.substr(3)))), all_(target == "sm_90a") {
    for (const TileRow& row : kTiles)
      if (all_ || row.everywhere) add_tile(row);
    for (const FieldRow& row : kFields)
      if (all_ || row.everywhere) add_field(row);
    add_shared();
    add_kron();
  }
  const std::vector<Kernel>& kernels() const { return kernels_; }
  const plan::GpuInfo& gpu() const { return gpu_; }

 private:
  void add(Kernel kernel) {
    if (kernel.source.text.empty() || !texts_.insert(kernel.source.text).second) return;
    EXPECT_TRUE(names_.insert(kernel.name).second) << kernel.name << " is the name of two kernels, and of one row";
    kernels_.push_back(std::move(kernel));
  }

  plan::GpuPairProblem problem(const Sizes& sizes, Dtype points) const {
    plan::GpuPairProblem problem;
    problem.type = problem.arrays.out = compute_type(points);
    problem.arrays.points = points;
    problem.arrays.bytes = points == Dtype::uint8;
    problem.sizes = plan::sizes_of(sizes.m, sizes.n, sizes.k, gpu_.multiprocessors);
    problem.params.normal_reciprocals = true;
    problem.device.capability = gpu_.capability;
    problem.device.shared_per_block = gpu_.shared_per_block;
    return problem;
  }

  void add_pairs(const std::string& name, const plan::GpuPairProblem& problem, Dtype points, Dtype out) {
    const auto plan = plan::plan_gpu_pairs(problem);
    PairSources sources = pair_sources(*plan, points, out, target_);
    add({name, std::move(sources.common.tile), plan->tile.threads(), plan->tile.min_blocks,
         plan->shared_bytes(1 << 20)});
    add({name + ".pack-x", std::move(sources.common.pack_x)});
    add({name + ".pack-z", std::move(sources.common.pack_z)});
    add({name + ".uniforms", std::move(sources.common.uniforms), 128});
    add({name + ".candidates", std::move(sources.common.candidates)});
    add({name + ".merge", std::move(sources.common.merge), 128});
    add({name + ".integers", std::move(sources.pipes.integers), plan->tile.threads(), plan->tile.min_blocks,
         plan->shared_bytes(1 << 20)});
    if (plan->pipes.differs)
      add({name + ".differences", std::move(sources.pipes.differences), plan->pipes.difference_tile.threads(),
           plan->pipes.difference_tile.min_blocks, plan->difference_shared_bytes()});
    if (plan->has_double_products())
      add({name + ".products", std::move(sources.products.tile), plan->products.double_tile.threads(),
           plan->products.double_tile.min_blocks, plan->shared_bytes(plan->products.double_tile, 1 << 20)});
    else
      add({name + ".products", std::move(sources.products.tile), plan->problem.product.threads(),
           plan->problem.product.blocks, plan->product_shared_bytes()});
    add({name + ".rated", std::move(sources.products.rated), plan->problem.product.threads(),
         plan->problem.product.blocks, plan->product_shared_bytes()});
    if (plan->keeps()) {
      add_product(name + ".kept-values", std::move(sources.products.kept_values), *plan->products.kept_values);
      add_product(name + ".kept-products", std::move(sources.products.kept_products), *plan->products.kept_products);
    }
    add({name + ".repair", std::move(sources.products.repair)});
    add({name + ".stored-sums", std::move(sources.common.stored_sums)});
    if (plan::bare_sums(*plan) != nullptr)
      add({name + ".finish", cuda_source(name, codegen::cuda_finish_source(*plan), target_)});
    add({name + ".expand", std::move(sources.pipes.expand)});
    if (plan->few.mma_rhs && plan->few.expanded)
      add({name + ".expanded", std::move(sources.pipes.expanded), plan->few.expanded->problem.product.threads(),
           plan->few.expanded->problem.product.blocks, plan->few.expanded->product_shared_bytes()});
    else if (plan->few.expanded)
      add({name + ".expanded", std::move(sources.pipes.expanded), plan->few.expanded->tile.threads(),
           plan->few.expanded->tile.min_blocks, plan->shared_bytes(1 << 20)});
  }

  void add_product(const std::string& name, jit::CudaSource source, const plan::GpuPairPlan& plan) {
    const plan::BilinearTile& tile = plan.problem.product;
    add({name, std::move(source), tile.threads(), tile.blocks, plan.product_shared_bytes()});
  }

  plan::Request request(const Sizes& sizes, Dtype points) const {
    plan::Request request;
    std::tie(request.m, request.n, request.k) = std::tie(sizes.m, sizes.n, sizes.k);
    request.points = points;
    request.type = request.out = compute_type(points);
    request.device = {gpu_.capability, gpu_.multiprocessors, gpu_.shared_per_block};
    return request;
  }

  void add_tile(const TileRow& row) {
    plan::Request request = this->request(row.sizes, row.points);
    request.verb = verb_of(row.consumer);
    request.fold = row.fold;
    request.columns = row.columns;
    request.out = row.out;
    request.device.by_warps = row.by_warps;
    if (row.way == nullptr) request.precision = Precision::direct;
    plan::Costs costs = plan::costs_of(gpu_.capability).everywhere();
    if (row.differences) costs.expanded_from = HUGE_VAL;
    UnkeptPlans plans(row.text, costs);
    const plan::Considered said = way_of(row).consider(request, costs, plans);
    ASSERT_TRUE(std::holds_alternative<plan::Offer>(said)) << row.name << ": " << std::get<1>(said).to_text();
    plan::GpuPairProblem problem = std::get<plan::Offer>(said).pairs();
    problem.outputs = {plans.formula().expression};
    problem.params.normal_reciprocals = true;
    problem.use.subtracts = row.subtracts;
    add_pairs(row.name, problem, row.points, row.out);
  }

  void add_field(const FieldRow& row) {
    if (row.rank_features > 0) return add_rank_field(row);
    plan::GpuFieldProblem second;
    const Expr f = ir::simplify(parse(row.text));
    const auto fields = [&](double most_scale) {
      return ir::split_field(ir::simplify(differentiate(f, points().x)),
                             row.by_weights ? ir::simplify(differentiate(f, weights())) : Expr(),
                             {.most_scale = most_scale});
    };
    second.field = fields(0);
    second.type = row.type;
    second.outputs = static_cast<int>(std::min<std::int64_t>(row.outputs, plan::kFieldOutputs));
    if (row.tensor_cores) {
      second.contraction.product_outputs = row.outputs;
      second.contraction.cluster = row.outputs > 8 && !row.wide ? 2 : 1;
      second.contraction.wide = row.wide;
    }
    second.device.capability = gpu_.capability;
    second.device.shared_per_block = gpu_.shared_per_block;
    const plan::Costs& costs = plan::costs_of(gpu_.capability);
    second.contraction.doubles = row.linear && row.type == Dtype::float64;
    if (row.linear && !second.contraction.doubles)
      second.contraction.linear =
          plan::linear_tile(10000, 10000, 768, plan::linear_sizes(10000, 10000, 768, row.outputs, 1 << 28),
                            Precision::fp32, 132, costs.everywhere());
    second.planes = static_cast<int>(second.field.pair_outputs.size());
    if (row.of_product > 0) {
      second = plan::product_of_values(request({10000, 10000, 768}, row.type), row.of_product, costs).value();
      second.field = plan::value_product_field();
      second.planes = 1;
      second.stored.lie = row.lie;
      second.device.shared_per_block = gpu_.shared_per_block;
    }
    second.pass.few_features = row.few_features > 0;
    second.pass.features = row.by_weights ? row.few_features : 0;
    second.weights = row.kind();
    second.pass.with_product = row.sums > 0 && !row.by_matrix;
    second.pass.sums = row.sums;
    const auto plan = plan::plan_gpu_field(
        second, row.beyond ? fields(ir::most_scale(Dtype::float64)) : ir::FieldSplit());
    if (row.few_features > 0) return add_few_features(row, plan);
    FieldSources sources = field_sources(*plan, target_);
    if (const plan::BilinearTile& stored = plan->problem.stored.tile)
      return add({row.name, std::move(sources.stored), stored.threads(), stored.blocks, stored.shared_bytes(0)});
    add({row.name, std::move(sources.field), 256, 1, plan->shared_bytes(1 << 20)});
    add({std::string(row.name) + ".uniforms", std::move(sources.uniforms), 128});
    if (plan->products) {
      add({std::string(row.name) + ".products", std::move(sources.contraction.products), plan->product_threads(), 1,
           plan->product_shared_bytes(plan->product_stages())});
      add({std::string(row.name) + ".operands", std::move(sources.contraction.operands), 1024});
      add({std::string(row.name) + ".units", std::move(sources.contraction.units), plan->product_threads(), 1,
           plan->product_shared_bytes(plan->product_stages(true), true)});
      add({std::string(row.name) + ".rows", std::move(sources.contraction.rows)});
    }
    add({std::string(row.name) + ".linear", std::move(sources.contraction.linear)});
    if (plan->linear) {
      const plan::BilinearTile& tile = plan->linear->problem.product;
      add({std::string(row.name) + ".linear-tile", std::move(sources.contraction.linear_tile), tile.threads(),
           tile.blocks, plan->linear->product_shared_bytes()});
    }
    plan::GpuPairProblem first = problem({}, row.type);
    first.outputs = second.field.pair_outputs;
    if (plan->beyond) first.gradient.marked = static_cast<std::uint8_t>(first.outputs.size());
    if (row.sums > 0) {
      const Expr f = parse(row.text);
      first.gradient.stored_sums =
          plan::plan_stored_sums(first.outputs, {differentiate(f, param("b")), f}, row.outputs, row.type);
      first.outputs = first.gradient.stored_sums->split.reductions;
    }
    if (!first.outputs.empty()) add_pairs(std::string(row.name) + ".pairs", first, row.type, row.type);
  }

  void add_rank_field(const FieldRow& row) {
    constexpr std::int64_t kPoints = 50000;
    const std::int64_t k = row.rank_features;
    auto field = std::make_shared<plan::RankField>(
        plan::rank_field_of(ir::split_field(ir::simplify(differentiate(ir::simplify(parse(row.text)), points().x)))));
    ASSERT_TRUE(*field) << row.name;
    plan::GpuPairProblem pairs = problem({kPoints, kPoints, k}, row.type);
    pairs.outputs = {field->amplitude};
    pairs.consumer = Consumer::product;
    const bool has_extra = row.sums > 0 && row.outputs > 1;
    pairs.product = plan::rank_field_tile(kPoints, kPoints, k, field->columns(k), {row.kind(), row.outputs},
                                          Precision::fp32, plan::costs_of(gpu_.capability), has_extra);
    add_side_sums(pairs, row, !row.by_matrix);
    pairs.product.side_sums = static_cast<int>(pairs.outputs.size()) - 1 - has_extra;
    pairs.use.columns = pairs.product.wide;
    pairs.gradient.rank_field = std::move(field);
    const auto plan = plan::plan_gpu_pairs(pairs);
    ASSERT_TRUE(plan->products.bilinear) << row.name;
    PairSources sources = pair_sources(*plan, row.type, row.type, target_);
    add({std::string(row.name) + ".rows", std::move(sources.common.tile)});
    add({row.name, std::move(sources.products.tile), plan->problem.product.threads(), plan->problem.product.blocks,
         plan->product_shared_bytes()});
  }

  static void add_side_sums(plan::GpuPairProblem& pairs, const FieldRow& row, bool with_product) {
    const Expr f = parse(row.text), by[] = {param("b"), row_value()};
    for (int s = 0; s < row.sums; ++s) pairs.outputs.push_back(differentiate(f, by[s]));
    if (row.sums > 0 && with_product) pairs.outputs.push_back(ir::simplify(f));
  }

  void add_few_features(const FieldRow& row, const std::shared_ptr<const plan::GpuFieldPlan>& field) {
    plan::GpuPairProblem pairs = problem({8192, 8192, row.few_features}, row.type);
    pairs.outputs = field->problem.field.pair_outputs;
    if (field->beyond) pairs.gradient.marked = static_cast<std::uint8_t>(pairs.outputs.size());
    add_side_sums(pairs, row, !row.by_matrix);
    pairs.consumer = Consumer::field;
    pairs.gradient.field = field;
    const auto plan = plan::plan_gpu_pairs(pairs);
    PairSources sources = pair_sources(*plan, row.type, row.type, target_);
    add({row.name, std::move(sources.common.tile), plan::kFewFeaturesThreads,
         plan::few_features_blocks(row.few_features), plan::few_features_bytes(*plan)});
  }

  template <class PassKernel>
  void add_pass_kernel(const std::string& name, const PassKernel& kernel) {
    add({name, cuda_source("kron", codegen::cuda_kron_source(kernel), target_), kernel.threads(), 1,
         kernel.shared_bytes()});
  }

  /// Passes over factors of these sizes of x [1024, K].
  void add_kron() {
    const auto add_pass = [&](Dtype dtype, int count, std::int64_t p, std::int64_t q, bool everywhere,
                              std::int64_t columns = 1) {
      if (!all_ && !everywhere) return;
      plan::KronGpuProblem problem;
      problem.dtype = dtype;
      problem.type = is_whole(dtype) ? dtype : compute_type(dtype);
      problem.factors.assign(static_cast<std::size_t>(count), {p, q});
      problem.rows = 1024;
      problem.columns = columns;
      problem.capability = gpu_.capability;
      problem.shared_per_block = gpu_.shared_per_block;
      problem.multiprocessors = 132;
      problem.vectors_in = problem.vectors_out = true;
      for (const plan::KronGpuPass& pass : plan::plan_kron_gpu(problem).passes)
        std::visit(
            [&](const auto& kernel) {
              const std::string of = pass.count < count ? fmt::format("-of-{}", count) : "";
              const std::string name = fmt::format("kron-{}-{}x{}^{}{}-{}{}", name_of(dtype), p, q, pass.count, of,
                                                   pass.place.right, columns > 1 ? "-columns" : "");
              add_pass_kernel(name, kernel);
            },
            pass.kernel);
      add({fmt::format("kron-finish-{}", name_of(dtype)),
           cuda_source("kron", codegen::cuda_kron_finish_source(problem.type, dtype), target_)});
    };
    add_pass(Dtype::float32, 5, 8, 8, true);
    add_pass(Dtype::float32, 4, 16, 16, true);
    add_pass(Dtype::float32, 3, 32, 32, true);
    add_pass(Dtype::float32, 3, 29, 31, false);
    add_pass(Dtype::float32, 2, 128, 128, true);
    add_pass(Dtype::float32, 2, 52, 50, false);
    add_pass(Dtype::float32, 3, 64, 64, false);
    add_pass(Dtype::float32, 3, 128, 128, false);
    add_pass(Dtype::float32, 3, 52, 50, false);
    add_pass(Dtype::float32, 2, 100, 100, false);
    add_pass(Dtype::float32, 2, 128, 64, false);
    add_pass(Dtype::float32, 1, 128, 128, false, 128);
    add_pass(Dtype::float32, 1, 64, 64, false, 64);
    add_pass(Dtype::float16, 2, 128, 128, false);
    add_pass(Dtype::float32, 1, 300, 700, false);
    add_pass(Dtype::float64, 2, 64, 64, false);
    add_pass(Dtype::float64, 2, 128, 128, true);
    add_pass(Dtype::float64, 2, 52, 51, false);
    add_pass(Dtype::float64, 1, 600, 700, false);
    add_pass(Dtype::float64, 5, 8, 8, false);
    add_pass(Dtype::float16, 2, 16, 16, false);
    add_pass(Dtype::bfloat16, 2, 5, 3, false);
    add_pass(Dtype::int32, 2, 16, 16, false);
    add_pass(Dtype::int64, 3, 4, 4, false);
  }

  /// Small matrices: teams of a part of a warp, of a warp and of two.
  void add_small(Dtype type) {
    using plan::SmallVerb;
    const auto add_verb = [&](const char* verb, SmallVerb which, std::int64_t order, const plan::SmallTile& tile) {
      add({fmt::format("small-{}-{}-{}", verb, order, name_of(type)),
           cuda_source("small", codegen::cuda_small_source(type, tile, which), target_), tile.threads(), tile.blocks,
           tile.shared_bytes()});
    };
    for (const std::int64_t order : {4, 8, 12, 16, 24, 32, 48, 64, 128}) {
      if (order > plan::most_of_small_tiles(type) || (!all_ && order != 8 && order != 64)) continue;
      add_verb("cholesky", SmallVerb::cholesky, order, plan::small_tile(order, type));
      add_verb("lu", SmallVerb::lu, order, plan::small_tile(order, type));
    }
    for (const std::int64_t order : {4, 8, 16, 32})
      if (all_ || order == 32) add_verb("eigh", SmallVerb::eigh, order, plan::small_eigen_tile(order, type));
  }

  void add_shared() {
    const auto add_plain = [&](const std::string& name, std::string text) {
      add({name, cuda_source(name, std::move(text), target_)});
    };
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      if (!all_ && type == Dtype::float64) continue;
      add_plain(fmt::format("nearest-{}", name_of(type)), codegen::cuda_nearest_source(type));
      add_plain(fmt::format("sum-splits-{}", name_of(type)), codegen::cuda_sum_source(type));
      add_plain(fmt::format("dense-{}", name_of(type)), codegen::cuda_dense_source(type));
      add_plain(fmt::format("columns-{}", name_of(type)), codegen::cuda_columns_source(type));
      add_plain(fmt::format("conjugate-gradients-{}", name_of(type)), codegen::cuda_cg_source(type));
      add_plain(fmt::format("low-rank-{}", name_of(type)), codegen::cuda_low_rank_source(type));
      add_plain(fmt::format("skipped-{}", name_of(type)), codegen::cuda_skipped_source(type, type, type));
      for (ReduceKind fold : {ReduceKind::sum, ReduceKind::argmin, ReduceKind::logsumexp})
        add_plain(fmt::format("known-fold-{}-{}", static_cast<int>(fold), name_of(type)),
                  codegen::cuda_known_folds_source(fold, type, fold == ReduceKind::argmin ? Dtype::int64 : type));
      add_plain(fmt::format("known-neighbours-{}", name_of(type)), codegen::cuda_known_neighbours_source(type));
      add_small(type);
    }
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      const std::string name = fmt::format("few-columns-{}", name_of(type));
      if (all_ || type == Dtype::float32)
        add({name, cuda_source(name, codegen::cuda_few_columns_source(type), target_), 128, 2, 74256});
    }
    if (gpu_.capability == 90) add_plain("rank-field", codegen::cuda_rank_field_source({}));
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      if (!all_ && type == Dtype::float64) continue;
      add_plain(fmt::format("pair-weights-{}", name_of(type)), codegen::cuda_pair_weights_source(type));
      add_plain(fmt::format("stream-merge-{}", name_of(type)), codegen::cuda_stream_merge_source(type));
    }
    add_plain("cg-condition", codegen::cuda_cg_condition_source());
    if (gpu_.capability >= 90)
      for (const auto& [cluster, rows] : {std::pair(8, 15), std::pair(16, 15), std::pair(16, 20)})
        add_plain(fmt::format("tridiagonal-{}x{}", cluster, rows), codegen::cuda_tridiagonal_source(cluster, rows));
    add_plain("operands-float64", codegen::cuda_double_operands_source(true, sqrt(weights())));
    add_plain("fill", codegen::cuda_fill_source());
    add_plain("blocked-factorisation", codegen::cuda_factor_source());
    if (gpu_.capability >= 90) {
      add_plain("lu-steps", codegen::cuda_lu_steps_source());
      add_plain("triangles", codegen::cuda_triangles_source());
    }
    if (all_) add({"lu-panels", cuda_source("lu-panels", codegen::cuda_lu_panel_source(), target_), 256});
    add_plain("quantise", codegen::cuda_quantise_source());
    add_plain("quantise-points", codegen::cuda_quantise_points_source(Dtype::float32));
    add_plain("wide-operands", codegen::cuda_wide_operands_source());
    add_plain("kept-operands", codegen::cuda_kept_operands_source());
    for (bool squares : {false, true})
      for (bool weighted : {false, true}) {
        const Expr multiplier = !weighted ? Expr() : squares ? sqrt(weights()) : weights();
        add_plain(fmt::format("operands{}{}", squares ? "-squares" : "", weighted ? "-weighted" : ""),
                  codegen::cuda_operands_source(squares, multiplier, !weighted));
      }
    for (Dtype points : {Dtype::float16, Dtype::bfloat16, Dtype::uint8, Dtype::float32, Dtype::float64})
      add_plain(fmt::format("plain-pack-{}", name_of(points)),
                codegen::cuda_plain_pack_source(compute_type(points), points));
  }

  std::string target_;
  plan::GpuInfo gpu_;
  bool all_;
  std::vector<Kernel> kernels_;
  std::set<std::string> texts_, names_;
};

Measured compiled(const Kernel& kernel) {
  static jit::CudaCompiler compiler(FileCache({}, 0), {});
  jit::CudaSource source = kernel.source;
  source.options.push_back("--ptxas-options=-v");
  try {
    const std::string log = compiler.compile_now(source).log;
    if (log.find("instructions are serialized") != std::string::npos)
      return {.error = "the compiler waits for every product:\n" + log};
    const auto reports = jit::ptxas_reports(log);
    if (reports.empty()) return {.error = "no kernel in the log"};
    Measured most;  // of the kernels of a source
    for (const auto& report : reports) {
      most.registers = std::max(most.registers, report.registers);
      most.spill_bytes = std::max(most.spill_bytes, report.spill_stores + report.spill_loads);
      most.shared = std::max(most.shared, report.shared);
    }
    return most;
  } catch (const std::exception& error) {
    return {.error = error.what()};
  }
}

/// What `known` has of each kernel, else what the compiler says.
std::vector<Measured> measured_all(
    const std::vector<Kernel>& kernels,
    const std::function<std::optional<Measured>(const Kernel&, const std::string&)>& known) {
  std::vector<Measured> results(kernels.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < kernels.size(); i = next++) {
      const std::string of = text_of(kernels[i].source);
      results[i] = known(kernels[i], of).value_or(Measured{});
      if (results[i].of == of) continue;
      results[i] = compiled(kernels[i]);
      results[i].of = of;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < default_thread_count(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return results;
}

void check_limits(const Kernel& kernel, const Measured& got, const plan::GpuInfo& gpu) {
  constexpr int kRegisters = 65536, kUnit = 8;  // of a multiprocessor; given out by the warp in units of so many
  const std::int64_t registers = (got.registers + kUnit - 1) / kUnit * kUnit;
  EXPECT_LE(registers * kernel.threads * kernel.blocks, kRegisters) << kernel.name;
  EXPECT_LE(kernel.shared_bytes + got.shared, gpu.shared_per_block) << kernel.name;
}

class CudaSkeletons : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaSkeletons, CompileWithinTheirLimits) {
  if (testing_support::kSanitized) GTEST_SKIP() << "NVRTC is not what the sanitizers look at";
  MERCER_NEEDS_NVRTC();
  const std::string target = GetParam();
  if (!nvrtc()->knows(target)) GTEST_SKIP() << target << " is newer or older than " << describe_nvrtc();
  const Collection collection(target);
  const std::vector<Kernel>& kernels = collection.kernels();
  const char* update = std::getenv("MERCER_UPDATE_GOLDEN");
  const bool writes = update != nullptr, compiles_all = writes && std::string(update) != "changed";
  RecordedKernels recorded;
  const auto known = [&](const Kernel& kernel, const std::string& of) {
    return compiles_all ? std::nullopt : recorded.known(target, kernel.name, of);
  };
  const std::vector<Measured> results = measured_all(kernels, known);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_EQ(results[i].error, "") << kernels[i].name;
    check_limits(kernels[i], results[i], collection.gpu());
  }
  if (HasFailure()) return;
  if (writes) {
    std::vector<std::pair<std::string, Measured>> rows;
    for (std::size_t i = 0; i < kernels.size(); ++i) rows.emplace_back(kernels[i].name, results[i]);
    return recorded.replace(target, rows);
  }
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const Measured* row = recorded.find(target, kernels[i].name);
    if (row == nullptr) {
      ADD_FAILURE() << kernels[i].name << " is not in " << RecordedKernels::path()
                    << "; MERCER_UPDATE_GOLDEN=1 writes it";
      continue;
    }
    EXPECT_LE(results[i].registers, row->registers + kMoreRegisters) << kernels[i].name;
    EXPECT_LE(results[i].spill_bytes, row->spill_bytes + kMoreSpillBytes) << kernels[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CudaSkeletons,
                         ::testing::Values("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace mercer::cuda
