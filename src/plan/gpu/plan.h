// Plans for GPUs: the programs of a formula, and the tile that runs them (kernels/cuda/pairs/pair_tile.cuh).
//
// One arithmetic serves all data here: maxima that keep NaN are single instructions. What a plan may still assume, when
// the caller has looked, is that 1/u is a normal number for the divisors u made of parameters: it saves a
// multiplication.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "mercer/pairwise.h"
#include "plan/forms/bilinear.h"
#include "plan/forms/guarded_sums.h"
#include "plan/forms/pair_mask.h"
#include "plan/forms/sides.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer::plan {

/// Accumulators a thread can keep in registers, in units of 32 bits.
inline constexpr int kAccumulatorWords = 64;
/// Bits of the mantissa that tables of fixed powers have (ir/lower/fit_power.h).
inline constexpr int kPowerBits = 2;

/// Pairs of a block and of a thread, features of a slice of shared memory, and how slices follow each other.
struct GpuTile {
  int tile_m = 128, tile_n = 128, tile_k = 16;
  int thread_m = 8, thread_n = 8;
  int stages = 3, unroll = 8;
  int min_blocks = 2;  // of a multiprocessor at once: bounds the registers
  bool bulk = true;    // slices come by the copy engine (compute capability 9.0)

  int threads() const { return tile_m / thread_m * (tile_n / thread_n); }
  bool operator==(const GpuTile&) const = default;
  std::string to_text() const;
};

/// What becomes of the pairs' values.
enum class Consumer : std::uint8_t { store, product, fold, nearest, field };

/// What of a call's sizes decides the tile; calls of one class share their kernels. The batch has no say: an item alone
/// gives the same bits.
struct GpuSizes {
  enum class Pairs : std::uint8_t { many, few, very_few };  // compared with the multiprocessors
  enum class Features : std::uint8_t { many, hundreds, several, some, few };  // above 256, 128, 32, 8
  Pairs pairs = Pairs::many;
  Features features = Features::many;
  bool narrow_m = false, narrow_n = false;                  // at most 32 points
  int exact_features = 0;                                   // their number where it is at most 16, else 0
  bool whole_slices = false;                                // it is a multiple of 32, above 32
  bool less_than_a_slice = false;                           // between 16 and 32
  bool very_many_chunks = false;                            // above kFeaturesOfTotal

  bool operator==(const GpuSizes&) const = default;
  auto parts() const {
    return std::tie(pairs, features, narrow_m, narrow_n, exact_features, whole_slices, less_than_a_slice,
                    very_many_chunks);
  }
  std::string to_text() const;
};
/// Features of a slice at most, where their number is not part of the kernel.
inline constexpr int kDeepestSlice = 32;
GpuSizes sizes_of(std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors);

/// How much a call has to gain by sums of absolute differences on mixed pipes. With `some` only matrices are mixed that
/// have long sums, and from `more` on those whose values tolerate what integers lose.
enum class MixedWork : std::uint8_t { little, some, more, much };
MixedWork mixed_work(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs);

/// Sums of fewer differences of bytes fit 32 bits.
inline constexpr std::int64_t kMostByteFeatures = std::int64_t{1} << 24;

struct GpuPairPlan;
struct GpuFieldPlan;
struct RankField;
struct StoredSums;

/// What the arrays of a call hold.
struct PairArrays {
  Dtype out = Dtype::float32;     // of the stored values
  Dtype points = Dtype::float32;  // what the points are stored as
  bool bytes = false;             // they are uint8, and so few features that their sums fit 32 bits
};

/// What the consumer does.
struct PairUse {
  ReduceKind fold = ReduceKind::sum;
  int columns = 1;         // of v that one pass takes
  bool subtracts = false;  // stored values are taken from what is there; tensor cores alone do that
};

struct PairParameters {
  bool normal_reciprocals = false;  // 1/u is a normal number for every uniform divisor u
  bool by_value = false;            // all parameters are numbers, in the kernel's arguments
};

/// What sizes allow; whether the formula has it, the plan finds out.
struct PairTries {
  MixedWork mixed_work = MixedWork::little;
  bool expands = false;    // squares
  bool differs = false;    // differences by tensor cores
  bool by_ranges = false;  // blocks that share the features of a tile, where the states of its pairs can be merged
};

/// Pairs of a gradient's pass.
struct PairGradient {
  std::shared_ptr<const GpuFieldPlan> field;      // of few features, which takes values as they come
                                                  // (kernels/cuda/gradient/few_features.cuh)
  std::shared_ptr<const RankField> rank_field;    // that these products, of its amplitude, contract
  std::shared_ptr<const StoredSums> stored_sums;  // what becomes of the outputs where they are stored
  std::uint8_t first_marked = 0, marked = 0;  // outputs that are a mark where sums leave the range, from which a field
                                              // knows that it is to be computed again (plan/forms/field_beyond.h)
};

/// What kernels are written for.
struct PlanDevice {
  int capability = 90;  // compute capability: 80, 86, 89, 90, 100, 120
  std::int64_t shared_per_block = 232448;
};

struct GpuPairProblem {
  std::vector<Expr> outputs;    // simplified; one, but for gradients
  Dtype type = Dtype::float32;  // computing type
  PairArrays arrays;
  Consumer consumer = Consumer::store;
  PairUse use;
  PairParameters params;
  PairTries tries;
  BilinearTile product;        // for sums that are products of matrices, where the call is large enough; of float64,
                               // that it is alone counts
  BilinearTile plane_product;  // for such sums among several (plan/gpu/sums/sum_planes.h)
  PairGradient gradient;
  GpuSizes sizes;
  PlanDevice device;

  /// Whether a problem that is of no gradient is the same but for its outputs.
  auto parts() const {
    return std::tie(type, arrays.out, arrays.points, arrays.bytes, consumer, use.fold, use.columns,
                    params.normal_reciprocals, use.subtracts, params.by_value, tries.mixed_work, tries.expands,
                    tries.differs, tries.by_ranges, product, plane_product, sizes, device.capability,
                    device.shared_per_block);
  }
};

/// What a pair costs per feature, in issue slots of a quarter of a multiprocessor (32 lanes a cycle).
struct GpuCost {
  double issue = 0, fma = 0, alu = 0, unit = 0;
  /// Slots of the busiest: ALU instructions take two, those of the special-function unit eight.
  double slots() const;
};
GpuCost count_gpu(const ir::Program& program);
/// The mean where this share of the pairs costs `other`.
GpuCost blend(const GpuCost& cost, const GpuCost& other, double share);

/// The update where the exponent of its powers is a parameter: a block looks at its own
/// (kernels/cuda/pairs/power_table.cuh). The plan's update serves exponents of all kinds, its alternative those that
/// are moderate.
struct GpuPowers {
  int slot = -1;         // of the parameter; -1: there is none
  ir::Program one, two;  // of exponents 1 and 2
  ir::Program moderate;  // of those above 0 and at most kLargestTablePower
  explicit operator bool() const { return slot >= 0; }
};

/// The programs of a pair and of what is computed once a point or once a call.
struct PairPrograms {
  ir::Program update, epilogue;      // update is empty when the formula has no reduction of pairs
  ir::Program first_update;          // of the first feature, where that takes fewer instructions; else empty
  ir::Program range_merge;           // of the states of two ranges of features; empty: a block has all of a tile's
  ir::Program uniforms;              // float64
  std::vector<double> identity;      // per state
  std::vector<bool> promoted;        // per state
  std::vector<int> reciprocals;      // uniforms that hold a 1/u
  int row_slots = 0, col_slots = 0;  // values per point
  bool long_epilogue = false;        // too long to be unrolled over a thread's pairs
  std::vector<Expr> accumulation_params;
};

/// How the tile finds its points.
struct PairInput {
  bool bytes = false;   // sum of |x - z| of bytes: four features an instruction, sums exact
  bool direct = false;  // few small points: the tile reads them as they lie, nothing is packed
};

/// Other instructions for the sums: ways dual_pipe and tensor_core_differences, and powers by table.
struct PairPipes {
  ir::Program alternative;      // the same sums for a part of the pairs, on other pipes: fixed powers by table
  int alternative_eighths = 0;  // of the pairs of a thread
  GpuPowers powers;
  int mixed_sixteenths = 0;  // of the pairs of a thread, on quantised values as integers (kernels/cuda/pairs/mixed.cuh)
  bool differs = false;      // differences of x and z come from tensor cores, where their values have pieces
                             // (kernels/cuda/pairs/pair_differences.cuh): in this tile
  GpuTile difference_tile;
};

/// Sums that are products of matrices: ways gemm_sum, gemm_sum_float64 and precomputed_sums.
struct PairProducts {
  Bilinear bilinear;  // the sum runs on tensor cores (kernels/cuda/gemm/bilinear_tile.cuh); the plan's tile repairs
  std::vector<std::shared_ptr<const GpuPairPlan>> planes;  // of sums that others compute first: accumulators after
                                                           // the states of `split` (plan/gpu/sums/sum_planes.h)
  GpuTile double_tile;        // of float64, where it does (kernels/cuda/gemm/double_products.cuh)
  bool deep_doubles = false;  // 16 features a product, of compute capability 9.0 on; else four
  /// Products may store values in pieces (kernels/cuda/gemm/bilinear_kept.cuh): the plan that makes these, and that of
  /// the products that they are a factor of. Null where none are stored.
  std::shared_ptr<const GpuPairPlan> kept_values, kept_products;
};

/// What values in products may lose, by which the device decides.
struct PairLoss {
  ir::Program rate;       // expanded squares and products on tensor cores: f = f(0) 2^(rate |x - z|^2); else empty
  ir::Program allowance;  // of parameters, what `allowance_of` gives; else empty
  int rate_slot = -1;     // of products on mixed pipes: the parameter that takes the scale of the only sum, or none
};

/// Products with v of few features: ways mma_rhs and expanded.
struct PairOfFewFeatures {
  bool mma_rhs = false;  // values are left operands of products with v (wide_tile.cuh)
  /// The plan of exp2(sum(x*z)) on expanded points, which the tile of values leaves all to where it can
  /// (kernels/cuda/pairs/expanded.cuh).
  std::shared_ptr<const GpuPairPlan> expanded;
  bool of_expanded = false;  // this is such a plan
};

/// Folds over n.
struct PairFolding {
  bool sums_decide = false;  // of two pairs, the one with the smaller sum has the smaller value
  int model_blocks = 0;      // of the model's own tile, where the plan's is a measured one (plan/gpu/tiles.h)
};

struct GpuPairPlan {
  GpuPairProblem problem;
  ir::Split split;
  PairPrograms programs;
  Sides sides;
  GpuTile tile;
  PairInput input;
  PairMask mask;  // rectangles of pairs that need no computation
  GpuGuard guard;  // values whose sums leave the range before they do
  PairPipes pipes;
  PairProducts products;
  PairLoss loss;
  PairOfFewFeatures few;
  PairFolding folding;

  bool by_ranges() const { return !programs.range_merge.outputs.empty(); }
  bool tuned() const { return folding.model_blocks > 0; }
  /// Accumulators of a pair.
  int states() const { return split.states + static_cast<int>(products.planes.size()); }
  /// Products with many columns of a Gauss kernel by split products: where its width allows it, values go in pieces of
  /// 16 bits.
  bool rates() const {
    return products.bilinear && problem.product.wide > 0 && !loss.rate.outputs.empty() && !problem.gradient.rank_field;
  }
  bool keeps() const { return products.kept_values != nullptr; }
  /// Whether products with v may take pieces of 16 bits: with rates, kept values or expanded squares.
  bool takes_halves() const { return rates() || keeps() || (few.mma_rhs && (few.expanded || few.of_expanded)); }
  bool has_double_products() const { return products.bilinear && problem.type == Dtype::float64; }
  /// Blocks of a multiprocessor by which folds split n: a measured tile must not change the order of their sums.
  int wave_blocks() const { return tuned() ? folding.model_blocks : tile.min_blocks; }
  int promoted_states() const;
  /// Columns of v that a pass takes; 0 where there is no v.
  int product_columns() const { return problem.consumer == Consumer::product ? problem.use.columns : 0; }
  /// Rows of a packed panel; none where planes are all that a tile reads.
  std::int64_t panel_rows(std::int64_t features) const {
    if (!products.planes.empty() && split.states == 0) return 0;
    return input.bytes ? (features + 3) / 4 : features;
  }
  /// Features between two promotions of partial sums, of so many in all: whole slices of every tile.
  int chunk(std::int64_t features) const;
  /// Whether the values that a tile finds are not the last word: nearest pairs are computed again.
  bool recomputes() const { return folding.sums_decide || products.bilinear; }
  /// Few features on their way into one sum or state a row: the pairs of a row from their operands to the fold, before
  /// the next row's (kernels/cuda/pairs/pair_rows.cuh).
  bool by_rows() const;
  /// Blocks that store several tiles of n one after the other: with few features, starting a block costs as much as a
  /// tile.
  bool many_tiles() const;
  /// Bytes of shared memory of a block; partial sums take theirs only when some are promoted.
  std::int64_t shared_bytes(std::int64_t features) const { return shared_bytes(tile, features); }
  std::int64_t shared_bytes(const GpuTile& of, std::int64_t features) const;
  /// Bytes of shared memory of a block of the tiles on tensor cores.
  std::int64_t product_shared_bytes() const;
  std::int64_t difference_shared_bytes() const;
  /// Whether the device decides, by the range of the values, which tile computes all.
  /// Packing writes pieces of the values: differences are what is tried first.
  bool packs_pieces() const { return pipes.differs && pipes.mixed_sixteenths == 0; }
  bool asks_ranges() const { return pipes.mixed_sixteenths > 0 || pipes.differs; }
  std::string to_text() const;
};

/// Whether pairs on tensor cores are computed again from rows of values, which takes memory and time to write. Stored
/// inner products only are where pieces cannot carry a point: panels will do.
bool reads_rows(const GpuPairPlan& plan);

/// Shared memory of repairs by areas (kernels/cuda/gemm/repair_areas.cuh), in bytes: two slices of 32 features of an
/// area's points, sums of 1536 pairs.
inline constexpr std::int64_t kRepairAreasBytes = 2 * 2 * kArea * 128 + 1536 * 4;

/// Whether products of float64 may leave everything to the tile: squares that cancel, or scales that cannot be had.
bool leaves_pairs(const GpuPairPlan& plan);

/// Whether slices of this tile can come by the copy engine: packed panels, whole ones.
bool can_be_bulk(const GpuPairPlan& plan, const GpuTile& tile);

/// Throws unsupported or invalid_argument when the formula cannot be planned.
std::shared_ptr<const GpuPairPlan> plan_gpu_pairs(const GpuPairProblem& problem, const Costs& costs);
/// The plan by the row of its compute capability.
std::shared_ptr<const GpuPairPlan> plan_gpu_pairs(const GpuPairProblem& problem);

}  // namespace mercer::plan
