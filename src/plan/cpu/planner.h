// The planner: expressions of a pair become a plan, everything that code generation needs and `explain` prints.
//
// A plan has two variants of one arithmetic structure. The general one is right for all data. The fast one may assume
// that the packed streams are finite, of the magnitudes it names, and that 1/u is a normal number for every divisor u
// made of parameters; the back end checks both per block of points, and runs the general one where they fail.
//
// A sum of absolute differences has a third way to accumulate, by maxima (plan/forms/absolute_sums.h), for calls large
// enough to look at their data first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "plan/cpu/guard.h"
#include "plan/cpu/kernel.h"
#include "plan/cpu/maxima_sums.h"
#include "plan/cpu/target.h"
#include "plan/forms/absolute_sums.h"
#include "plan/forms/pair_mask.h"
#include "plan/forms/sides.h"

namespace mercer::plan {

/// No tile is higher: from so many rows on, all problems have one plan.
inline constexpr std::int64_t kManyRows = 8;

/// What looking at a call's data and packing for maxima may cost, of what they save: calls that save less do neither.
inline constexpr double kLeastGain = 1.5;

/// What one pass over pairs computes.
struct PairProblem {
  std::vector<Expr> outputs;          // simplified; one, but for gradients
  std::vector<Expr> again;            // of pairs that are computed again; empty: the outputs
  Dtype type = Dtype::float32;        // computing type
  Target target = Target::interpreter;
  const CpuRow* cpu = &kReferenceRow; // whose costs choices follow
  bool empty_features = false;        // K = 0: identities must be exact
  std::int64_t block_columns = 0;     // outputs go to planes of about so many columns (0: of the tile's)
  std::int64_t rows_hint = kManyRows; // points on the broadcast side: few rows take a lower tile
};

struct PairVariant {
  ir::Split split;
  ir::Program update, epilogue;  // update is empty when the formula has no reduction of pairs
  std::vector<double> identity;  // per state; parameters in identities are refused
  ir::Program uniforms;          // float64: parameters and K in, one output per uniform
  std::vector<int> reciprocals;  // uniforms that are 1/u
  ir::Magnitudes magnitudes = ir::kModerate;  // of streams that the fast variant takes
};

struct PairPlan {
  PairProblem problem;
  TileShape tile;
  std::vector<bool> promoted;             // per state
  PairVariant general, fast;
  bool has_fast = false;                  // false: both are the same and `fast` is empty
  MaximaSums maxima;                      // of the best variant; its factor is 0 where there are none
  Sides sides;                            // the same in both variants
  PairGuard guard;                        // of plans without sums of maxima
  PairMask mask;                          // rectangles of pairs that need no computation
  int row_slots = 0, col_slots = 0;       // arrays per point that the programs, or the guard, read
  std::vector<Expr> accumulation_params;  // parameters that the accumulation reads; others are the epilogue's alone

  const PairVariant& best() const { return has_fast ? fast : general; }
  /// Columns of a plane of outputs: a multiple of the tile's.
  std::int64_t plane_width() const;
  /// Features between two promotions of partial sums; at least 1. It depends on the formula and K alone.
  std::int64_t chunk(std::int64_t features) const;
  /// Whether so many features are added up part by part, of kFeaturesOfTotal: where all states are promoted.
  bool sums_parts(std::int64_t features) const;
  /// How many features are packed at a time where panels of all `features` would take too much memory; 0 where panels
  /// hold all.
  std::int64_t part_features(std::int64_t features) const;
  /// Whether the epilogue fits next to the accumulators: update_source() may then be asked for both in one kernel.
  bool can_fuse(bool fast) const;
  UpdateSource update_source(bool fast, bool fused = false) const;
  /// The update kernel for more features of a tile: it adds to the accumulators that it finds.
  UpdateSource continued_source(bool fast) const;
  /// Whether a call of so many points accumulates by maxima where its data allow.
  bool pays_maxima(std::int64_t m, std::int64_t n, std::int64_t features, double least_gain = kLeastGain) const;
  /// The update by maxima, alone or with the best variant's epilogue.
  UpdateSource maxima_source(bool fused = false) const;
  EpilogueSource epilogue_source(bool fast) const;
  std::string to_text() const;
};

/// Throws unsupported or invalid_argument when the formula cannot be planned.
std::shared_ptr<const PairPlan> plan_pairs(const PairProblem& problem);

/// The gradient's second pass: φ per (m, n, k), contracted over n with `outputs` coefficients.
struct FieldProblem {
  ir::FieldSplit field;
  Dtype type = Dtype::float32;  // computing type
  Target target = Target::interpreter;
  const CpuRow* cpu = &kReferenceRow;
  std::int64_t outputs = 1;     // o; a kernel takes some of them
  std::int64_t features = 0;    // k
  int n_capacity = 0;           // points n of a block: the stride of col and of pair values
  int pair_stride = 0;          // elements between two pair values of a point; 0 when there is one
};

struct FieldPlan {
  Dtype type = Dtype::float32;
  Target target = Target::interpreter;
  int outputs = 1, vectors = 1, rows = 1;  // of one kernel
  bool holds = false;                 // FieldSource
  int n_capacity = 0, pair_stride = 0;
  ir::FieldFold fold;                 // of a fold; `program` has its states of each output of a kernel
  std::vector<double> identity;
  ir::Program finish;                 // what becomes of the states, the result first; without outputs: as they are
  std::vector<int> scale_slots;       // φ is these pair values times `program`: the driver folds them into the
                                      // coefficients
  std::vector<Expr> params;
  ir::Program uniforms;
  ir::Program weight;                 // of w, in float64: a factor that φ lacks, for the results; without outputs: none
  ir::Program program;                // right for all data
  ir::Program fast_program;           // for rows of x and z of these magnitudes
  ir::Magnitudes magnitudes = ir::kModerate;
  bool has_fast = false;
  std::vector<int> units;             // pair values; where one of them is not 1, the scaled program runs
  ir::Program scaled_program;         // without outputs: none

  int states() const { return fold ? fold.states() : 1; }
  FieldSource source(bool fast) const;
  FieldSource scaled_source() const;
  FieldSource finish_source() const;
};

std::shared_ptr<const FieldPlan> plan_field(const FieldProblem& problem);

/// The least time that the instruction mix of a plan's best variant allows.
struct Floor {
  double update_cycles = 0;    // per vector of elements (m, n, k)
  double epilogue_cycles = 0;  // per vector of pairs (m, n)
  int lanes = 16;

  /// Elements a second and core at this clock, the epilogue spread over the features.
  double elements_per_second(double hertz, std::int64_t features) const;
};
Floor floor_of(const PairPlan& plan);
/// The floor of the way that a call of this size takes.
Floor floor_of(const PairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t features);

}  // namespace mercer::plan
