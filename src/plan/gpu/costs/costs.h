// What ways cost on a generation of GPUs: sizes from which they pay, and times (rows: plan/targets/cuda_costs.cpp). The
// comment of a number is its line in docs/design/costs.md, and its name in records is that of its groups and its own:
// "stored.pass" (plan/gpu/costs/costs_fields.h).
#pragma once

#include <cstdint>

namespace mercer::plan {

/// Sums that are products of matrices on tensor cores, and their tiles.
struct TensorCoreCosts {
  std::int64_t least_points;      // points on either side from which they run there
  std::int64_t least_doubles;     // the same of float64, where pairs are stored
  std::int64_t pairs_features;    // features from which they do where pairs are stored, or the nearest kept
  std::int64_t folds_features;    // features from which they do where folds keep a value of a row
  double fixup_from;              // pairs times features from which pairs that cancel are listed by areas
  std::int64_t range_features;    // features of a range at least, where ranges of the features fill a device
  std::int64_t most_ranges;       // ranges of the features at most
  double wide_tile;               // microseconds of a column and feature of a tile of 192 columns
  double middle_tile;             // the same of 128 columns
  double narrow_tile;             // the same of 64 columns
  double tile_epilogue;           // microseconds of the epilogue of a column of a tile
  double tile_start;              // microseconds in which a tile starts
  double tile_join;               // microseconds in which a column of a range is added to the others
  double most_columns_of_few;     // times as long a pass takes with 128 columns of v, at most 64 features
  double most_columns;            // the same, of more features
  double most_columns_of_values;  // the same, of values as the left operand
};

/// Blocks that share the features of a tile of pairs, where tiles are few.
struct RangeCosts {
  double from;              // pairs times features from which they are considered
  std::int64_t most_pairs;  // pairs up to which they are
  double latency;           // issue slots that pass for one of a warp that has a scheduler alone
  double join;              // microseconds in which the states of a range are merged
  double start;             // microseconds that they add to a call
  double gain;              // they pay where they take less than this share of the time of a block for all features
  double products_call;     // microseconds of the launches around sums in pieces on tensor cores
};

/// Milliseconds for 10^9 pairs in a product with v whose values products of matrices make.
struct KeptCosts {
  double feature;           // a feature, in every pass or once
  double pass;              // a pass over some columns of v
  double pass_column;       // a column of a pass
  double store;             // values that are stored in place of passes
  double column;            // a column that stored values are multiplied with
  double call;              // milliseconds of the launches that storing adds to a call
  double gain;              // storing pays where it takes less than this share of the passes' time
  std::int64_t least_rows;  // rows from which storing is considered
};

/// Squares of differences of few features as norms and products, and tiles of products of a warp there.
struct ExpandedCosts {
  std::int64_t few_features;    // features up to which products of a warp serve more columns of v
  std::int64_t few_columns;     // columns of v up to which they serve so few features
  std::int64_t warp_columns;    // columns of v up to which they serve more features
  std::int64_t blocks_columns;  // columns of v up to which a multiprocessor has four blocks, of few features
  std::int64_t blocks;          // blocks of a multiprocessor without products of a warp, of at most four features
};

/// Differences by tensor cores.
struct DifferenceCosts {
  std::int64_t features;    // more features than these have the tile
  double busy;              // share of the multiprocessors that tiles keep busy at least
  double symmetric_rounds;  // rounds of tiles of a symmetric matrix at least
  double slots;             // issue slots of a pair and feature up to which an addition less is felt
};

/// Lengths of epilogues.
struct EpilogueCosts {
  std::int64_t instructions;      // instructions, constants and inputs up to which one is short whatever it issues
  double slots;                   // issue slots up to which a longer one is short: it stays with values in registers
  double gradient_slots;          // the same where a gradient is contracted as its amplitudes come
  std::int64_t row_instructions;  // instructions up to which sixteen values of a row stay in registers
};

/// Milliseconds for 10^9 pairs in a product with v whose values are not made by products of matrices.
struct ValueCosts {
  double pass;            // a pair, in a pass over 16 columns of v
  double feature;         // a pair and feature of such a pass
  double store;           // a pair whose value is stored
  double stored_feature;  // a pair and feature of values that are stored
  double column;          // a column that stored values are multiplied with
  std::int64_t multiple;  // to which the columns are rounded up
};

/// Products with v in the pass of a backward that stores its pairs: milliseconds for 10^9 pairs.
struct ExtraCosts {
  double one;                     // one column of v
  double four;                    // up to four columns
  double sixteen;                 // up to sixteen columns
  double doubles;                 // times as long in float64
  std::int64_t products_columns;  // columns up to which it pays where products of matrices make the values
};

/// Gradients, whose pairs are contracted with coefficients.
struct GradientCosts {
  std::int64_t least_points;      // points of z from which tensor cores contract
  std::int64_t product_features;  // features from which they do point by point, or for one output
  double wide_field_share;  // powers take the wide tile where it has less than this share of the other's features
  std::int64_t linear_rows;       // rows from which they do where the factor is linear
  std::int64_t linear_columns;    // columns of outputs and features from which they do there, of fewer features
  std::int64_t double_features;   // features from which tensor cores contract float64, where the factor is linear
  std::int64_t matrix_points;     // points on either side from which sum(x*z) weighed with a matrix is a product
  double thread_reads;            // features as long as a thread reads a pair's values for
  double thread_gain;             // fewer features than four are a thread's where they take less than this share
  std::int64_t rank_features;     // features up to which amplitudes are contracted as they come
  std::int64_t rank_points;       // points on either side from which they are
  double rank_pass;               // nanoseconds of 1000 pairs of a pass that contracts them so
  double rank_stored;             // the same of amplitudes that are stored
  double rank_output;             // the same of an output of stored ones
};

/// Passes over one factor of a Kronecker product.
struct KronStepCosts {
  double start;            // seconds of a launch
  double bytes;            // bytes a second
  double flops;            // operations a second
  double multiprocessors;  // that both are of
};
/// Passes over several factors in shared memory. Shares are parts of the bandwidth.
struct KronChainCosts {
  double start;            // seconds of a launch
  double bytes;            // bytes a second
  double slots;            // issue slots a second, of values
  double tensor;           // slots of a value and an axis on tensor cores
  double tensor_elements;  // elements of an axis there that take a slot
  double eights;           // slots of a value and an axis of five to eight elements on tensor cores
  double doubles;          // slots of a multiply-add of float64 of long axes
  double shared_pairs;     // share of clusters, three blocks of a multiprocessor or more, by multiply-adds of float32
  double shared_many;      // share of clusters, three or more, otherwise
  double shared_two;       // share of clusters, two of a multiprocessor
  double shared_one;       // share of clusters, one of a multiprocessor
  double shared_ring;  // share of clusters whose rows come through rings
  double own_many;         // share of rows of a block, several of a multiprocessor or through a ring
  double own_pairs;        // share of rows of a block alone, by multiply-adds of float32
  double own_one;          // share of rows of a block alone, otherwise
  double short_lines;      // share that is left for lines of less than 128 bytes
  double tiny_lines;       // share that is left for lines of less than 64 bytes
  double arithmetic;       // share of the arithmetic that adds to the time
};
/// Passes over one or two factors by products of warpgroups.
struct KronWideCosts {
  std::int64_t from;  // elements of a factor from which they are considered
  double start;       // seconds of a launch and the first loads
  double image;       // seconds of an element of a factor's image
  double product;     // seconds of a product on a multiprocessor, three of pieces, with what goes with it
  double bytes;       // bytes a second
  double tile;        // seconds of a tile, however small
};
/// Passes over a factor in float64 on tensor cores.
struct KronDoubleCosts {
  double start;         // seconds of a launch and the first loads
  double bytes;         // bytes a second
  double shared_bytes;  // bytes of shared memory a second, of all multiprocessors
  double image_bytes;   // bytes of a factor's image a second
  double stage;         // seconds that go with a stage
  double alone;         // share of a stage's time that a group takes that nobody disturbs
  double store;         // seconds of a tile's stores
  double again;         // share of what is read again
  double overlap;       // share of the shorter of two times that overlap
  double narrow_lines;  // share of the bandwidth for lines of less than 128 bytes
  double single;        // share of the bandwidth for one element at a time
  double three_groups;  // multiply-adds a second, three groups of warps that hold the factor
  double two_groups;    // the same of two groups
  double one_group;     // the same of one group that does not
};
/// Passes of Kronecker products, a group for each kind of kernel.
struct KronCosts {
  KronStepCosts step;
  KronChainCosts chain;
  KronWideCosts wide;
  KronDoubleCosts doubles;
};

/// LU of float32 by blocks, on compute capability 9.0.
struct LuCosts {
  std::int64_t from;         // orders from which it goes so
  std::int64_t block = 0;    // columns of a block, multiples of 32, at most 1024; 0: by the order
  std::int64_t rows = 0;     // rows of a thread of the panel's kernel: 2, 4, 8, 16; 0: by the order
  std::int64_t cluster = 0;  // blocks of that at least: 1, 2, 4, 8, 16; 0: by the order
};
/// Dense linear algebra.
struct DenseCosts {
  std::int64_t part_bytes;          // bytes of matrices that go through a device together, and of right-hand sides
  std::int64_t small_until;         // orders up to which matrices have kernels of our own, where those serve them
  std::int64_t blocked_from;        // orders from which Cholesky's factorisation of float32 goes by blocks
  std::int64_t blocked_batch_from;  // orders from which it does in a batch
  double alone_until;  // n^2 (features + columns) up to which each of several GPUs finds eigenpairs alone
  LuCosts lu;
};

/// Calls on arrays of the host that a device computes block by block.
struct StreamCosts {
  std::int64_t memory;  // bytes of blocks; 0: as many as are free
  std::int64_t piece;   // bytes of a pinned buffer
  std::int64_t points;  // points of z of a step at least
  double terms;         // pairs times numbers of a pair of the first step
};

struct Costs {
  double tensor_cores_from;          // pairs times features from which sums that are products of matrices run there
  double wide_from;                  // pairs from which values of few features are an operand of products with v
  double expanded_from;              // pairs from which squares of differences of few features are expanded
  double much_mixed_work;            // pairs times features that plan::mixed_work calls much
  double more_parts;                 // the part of much from which it calls a call more
  double some_parts;                 // the part of much from which it calls a call some
  double mixed_pairs;                // pairs of a point from which quantising the points pays
  std::int64_t sums_features;        // features from which one of several sums is computed and stored first
  std::int64_t candidates_from;      // points of z from which few neighbours are found while pairs are computed
  std::int64_t candidates_rows;      // points that look for neighbours from which they are
  std::int64_t by_warps;             // 1: products of warps, also where a device has those of warpgroups
  std::int64_t part_bytes;           // bytes of values of pairs that are stored at once for a second kernel
  double mask_strip;  // operations of a multiprocessor's lanes while a mask's strip is launched
  double mask_byte;  // operations of a lane, of all of a device, in the time of a byte that is written
  double stored_call;                // milliseconds of the launches around values that are stored
  std::int64_t stored_least_points;  // points on either side from which storing values is considered
  std::int64_t stored_columns;       // columns of v up to which a tile reads stored values without a copy
  ValueCosts stored;                 // up to `stored_columns` columns of v
  ValueCosts pieces;                 // more columns than `stored_columns`
  ValueCosts float64;
  TensorCoreCosts tensor_cores;
  RangeCosts ranges;
  KeptCosts kept;
  ExpandedCosts expanded;
  DifferenceCosts differences;
  EpilogueCosts epilogue;
  ExtraCosts extra;
  GradientCosts gradient;
  KronCosts kron;
  DenseCosts dense;
  StreamCosts stream;

  /// Costs with no size too small for any way.
  Costs everywhere() const;
};

/// The row of this compute capability, or of the newest one before it.
const Costs& costs_of(int capability);
/// Where no device is asked, as in calls on the CPU that take a size from it.
inline constexpr int kMeasuredCapability = 90;

}  // namespace mercer::plan
