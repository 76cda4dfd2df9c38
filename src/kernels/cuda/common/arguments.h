// Arguments of the kernels, read by both sides: the back end fills these structs, device text receives them by value.
#pragma once

#define MERCER_MAX_AXES 6     // of a batch, after axes that step alike have been merged
#define MERCER_MAX_NUMBERS 32 // parameters passed by value
#define MERCER_FILL_NUMBERS 480
#define MERCER_PANEL 64  // points of a panel
#define MERCER_DIFFERENCE_PANEL 128  // points of a panel of pieces (difference_pieces.cuh)
#define MERCER_QUANTISED 32  // points of a block that makes integers of their values
#define MERCER_IMAGE_ROWS 32  // points of a block of an operand image (split_operands.cuh)
#define MERCER_MERGED_COLUMNS 8  // of products, by a thread (merge.cuh)
#define MERCER_MERGE_NEIGHBOURS 4   // warps that have neighbouring columns of the same rows
#define MERCER_NO_PRODUCTS 0xffffffffu
// Whether pieces of 16 bits carry the values: no, since nobody asked or sizes forbid it; yes; no, since a tile found
// values out of range; no, since a sample did.
#define MERCER_RATED_NO 0
#define MERCER_RATED_YES 1
#define MERCER_RATED_BEYOND 2
#define MERCER_RATED_NEVER 3
#define MERCER_SAMPLED_PAIRS 2048  // asked whether most pairs cancel
#define MERCER_COLUMN_BLOCK 384  // columns that stay together where their order does not matter (candidates.cuh)
#define MERCER_UNIFORM_FACTORS 8  // parameters that the terms of a bilinear sum are multiplied with
#define MERCER_EXPANDED 8  // features of points whose squares of differences are expanded
#define MERCER_AREA 384  // rows and columns of the pairs that are listed together: whole regions, whole tiles
#define MERCER_REGION 64  // rows and columns of the pairs that are computed again together

// A walk over batch axes: the index of an item, taken apart, gives offsets (in elements, or in packed sets).
struct BatchAxes {
  int count;
  long long extent[MERCER_MAX_AXES];
};

// Range of a packed set whose values become integers (mixed.cuh).
struct PanelRange {
  unsigned low, high;  // of all values, as integers in the order of the floats
  int place;           // exponent of the last binary place that any value has
};

// Packs one side: points [count, k], strided and of any dtype, become panels of the computing type.
struct PackArguments {
  const void* points;
  const void* user;      // row or col values
  const void* weights;   // [k]
  const void* params;    // double [item][param_count], or null: `numbers`
  void* values;          // [pack][ld / 64][k][stream][64]; without a formula [pack][k][ld]; or null: none
  void* slots;           // [pack][slot][ld], or null: none
  void* weights_out;     // [k] in the computing type, or null
  struct PanelRange* ranges;  // [pack] where values become integers, or have pieces
  void* pieces[2];  // [pack] of x, of z, or null (difference_pieces.cuh)
  const struct SplitState* products;  // panels are for what these leave, or null
  long long count, ld, k;
  long long point_stride, feature_stride, user_stride, weight_stride;
  long long blocks, sets;  // blocks of points in a packed set; packed sets
  int user_dtype, weight_dtype, param_count;
  struct BatchAxes axes;
  long long points_step[MERCER_MAX_AXES], user_step[MERCER_MAX_AXES], item_step[MERCER_MAX_AXES];
  double numbers[MERCER_MAX_NUMBERS];
};

// What the device found out about the values of a call whose sums may run on two sets of pipes (mixed.cuh).
struct MixedState {
  float origin, step;   // value = origin + q * step; step is 0 where values cannot be quantised
  unsigned doubtful;    // pairs of the sample whose sums would lose the contract
  unsigned listed, capacity;  // pairs to repair; room for them
  unsigned worst[2];    // bits of the largest error of a point of each side
  float allowance;      // |f / f'| of values f of the sums, 0 for sums and whatever has none
};

// What the device found out about the points of a product whose squares of differences may be expanded (expanded.cuh).
struct ExpandedState {
  float rate, at_zero;  // f = at_zero 2^(rate |x - z|^2)
  float centre[MERCER_EXPANDED];
  // Bits of the largest |u|^2, and of the largest sum of |u|^2 over the partial sums of a pair, for both sides.
  unsigned most[2], most_partial[2];
  unsigned least_v, most_v;           // bits of the least |v| but for zeros, and of the largest
  unsigned spread, peaks;  // of many columns, bits of sums over some points by those of |v|: |v| |u|^2, and 32 times
                           // the largest |v| of each 32
  unsigned offset;         // the same of |sum of |v| u|
  unsigned arrived;                   // blocks that have looked at their points
  int stands;                         // whether the expanded tile's results are kept
};

struct MixedSide {
  const float* values;   // panels
  float* quantised;      // panels of 2^23 + q
  float* errors;         // [ld] sum over the features of |value - quantised value|; then the largest of 32 points
  void* pieces;          // [ld / 128][two features][128] of 16 bytes (difference_pieces.cuh)
  const struct PanelRange* range;
  long long count, ld;
};

// What the kernels of a call find out starts here: states of all groups, ranges of all packed sets.
struct StartMixedArguments {
  struct MixedState* states;
  struct PanelRange* ranges;
  long long state_count, range_count;
  unsigned capacity;
};

// Values of both sides become integers, one side when x and z are the same points, or pieces, both sides always.
struct MixedArguments {
  struct MixedState* state;
  struct MixedSide side[2];
  long long k;
  int sides;
  int sampled_blocks;  // of pairs that are asked whether they keep the contract
};

// Points as they are.
struct PlainPoints {
  const void* points;
  long long count, k, point_stride, feature_stride;
};
struct QuantisePointsArguments {
  struct MixedArguments mixed;
  struct PlainPoints points[2];
  struct PanelRange* of_blocks;  // [range_blocks] of either side one after the other
  struct PanelRange* ranges;     // [sides] that of both
  int range_blocks;
  unsigned capacity;
};

// Parameters that every term of a sum is multiplied with, or divided by. They scale the operands.
struct UniformFactors {
  const void* params;  // of the item, in the computing type; null: numbers
  int count, slot[MERCER_UNIFORM_FACTORS], divides[MERCER_UNIFORM_FACTORS];
  double numbers[MERCER_UNIFORM_FACTORS];
};

// What the device found out about the values of a call on tensor cores (split_operands.cuh).
struct SplitState {
  unsigned low;      // some value has a low piece
  unsigned largest;  // bits of the largest |sample - centre|, with its factor
  unsigned sampled;  // of a sample, pairs that cancel; MERCER_NO_PRODUCTS where operands cannot be had
  unsigned most_sampled;  // with more of them, products do not pay
  double scale;           // of values of both sides of squares, of x in products
  unsigned most_norm[2];  // bits of the largest |point|^2 of each side; of infinity where pieces cannot carry a point
  unsigned most_v;        // bits of the largest |v| of products with many columns
  int rated;              // whether their values are powers of two that pieces of 16 bits carry (MERCER_RATED_…)
  unsigned wants_panels;  // for pairs that are left to other kernels
  float at_zero, rate;    // where values of products with many columns are at_zero 2^(rate |x - z|^2)
  unsigned lost_v;        // bits of the largest part that pieces of v lose of the sum of 32 magnitudes
};

struct SplitSide {
  const float* values;    // panels
  const void* points;     // the caller's, where those are the values of the panels; else null
  long long point_stride, feature_stride;
  int dtype;              // of the points
  unsigned char* image;   // [ld / 32][unit][32][128 bytes]
  const float* rows;      // [count][row_length] the values again, as rows: for repairs
  float* rows_out;        // the same, to be written; null where they are the caller's points
  float* largest;         // [chunk][ld] of |value - centre| of a point
  double* norms;          // [chunk][ld] squared norms of the scaled pieces, where there are several
  float *norm, *norm_tail;  // [ld] squared norm of the pieces as written, in two parts: see norm_quantum
  float* scale;             // [ld] undoes the power of two
  long long count, ld;
};

// Both sides as pieces of 16 bits; one side when x and z are the same points.
struct SplitArguments {
  struct SplitState* state;
  struct SplitSide side[2];
  const float* weights;  // [k] or null
  float *centre, *farthest;  // [k], of the samples (samples.cuh)
  long long k, row_length, units;  // units: of an image, 32 features each
  long long image_units;           // the same with what follows them in the image (rank_field.cuh)
  int sides;
  int chunks;            // of the features
  int as_they_lie;       // points of float32 are read where they are: panels are not there yet
  int pieces;            // 1: high ones alone; 2: both, whatever the values; 0: low ones where some value has one
  int own_scales;        // each point has one; else 32 share it
  int quads;             // points of the image are in the order of quad_row (split_pieces.cuh)
  unsigned most_sampled;
  struct UniformFactors uniforms;
  unsigned* area_counts;  // [areas] of pairs to repair (areas.cuh)
  long long areas;
};

// The pairs of each row that may be among its nearest (candidates.cuh).
struct CandidateArguments {
  unsigned long long* keys;  // [m][capacity] value, as an integer in the order of the floats, << 32 | column
  unsigned* counts;          // [m]
  float* bounds;             // [m] what values may be at most; NaN where the row is left to scan_rows
  // Places of the blocks of columns that are looked at; block of place p is p * stride modulo the whole ones.
  long long first, end, stride;
  unsigned long long inverse;  // 2^64 by their number
  unsigned capacity;
};

// Points of one side of a tile of pairs: rows are x, columns are z.
struct PairSide {
  const void* points;  // packed values [pack][ld / 64][k][stream][64], or the points themselves, strided
  const void* user;  // slots of row or col [pack][slot][ld]
  long long ld, point, feature;  // point, feature: strides of points that are not packed
  long long offset;  // of the first point among those that the formula counts
  long long step[MERCER_MAX_AXES];
  const float* errors;  // of values that are integers (mixed.cuh)
  const struct PanelRange* range;  // the same
  float* expanded;  // of squares that may be expanded (expanded.cuh)
  void* chunks;  // the same in 16 bits, of products with many columns (expanded_chunks.cuh)
  const float* rows;  // of the computing type; of differences by tensor cores, panels of the values
  const double* norms;  // of products in float64
};

// Parameters of the formula.
struct PairParameters {
  const void* values;  // [item][count] of the computing type, or null: `numbers`
  int count;
  long long step[MERCER_MAX_AXES];
  double numbers[MERCER_MAX_NUMBERS];  // of the computing type, packed
};

// What values of pairs are multiplied with, and summed over n.
struct PairColumns {
  const void* data;  // [pack][column][ld]
  long long ld, step[MERCER_MAX_AXES];
  int columns, partial_columns;  // in this launch; of a range's partial sums
};

struct PairOutput {
  void* data;
  void* index;  // argmax, argmin: partial indices
  long long row, column, plane, partial_ld, step[MERCER_MAX_AXES];
};

// Items of a group share their accumulation; their epilogues differ in parameters.
struct PairMembers {
  struct BatchAxes axes;
  long long count, item_step[MERCER_MAX_AXES], out_step[MERCER_MAX_AXES];
};

// Sums of pairs that were computed before (plan/gpu/sums/sum_planes.h).
struct PairPlanes {
  const void* data;  // [plane][m][ld]
  long long ld, step;
};

// Sums on two sets of pipes; state null: everything is computed from the values themselves.
struct MixedPairs {
  struct MixedState* state;
  unsigned long long* repairs;  // m << 32 | n
};

// Squares of differences that may be expanded (expanded.cuh); state null: they are not.
struct ExpandedPairs {
  struct ExpandedState* state;
  float *v, *row_factors;
  int* z_powers;  // of many columns: whole exponents of factors
};

// Sums as products of matrices on tensor cores (bilinear_tile.cuh).
struct SplitPairs {
  struct SplitState* state;
  unsigned* marks;  // [region of m][region of n] a byte for 16 rows: 0, 1 some pairs listed, 2 to be computed again
  unsigned* area_counts;  // [area of m][area of n] pairs to repair (areas.cuh)
  unsigned* area_pairs;   // [area][area_capacity] row of the area << 16 | column; those beyond have no place
  unsigned area_capacity, dense_area;  // an area of as many pairs is left to repair_areas
  long long row_length;
};

// Features of a tile in ranges (pair_ranges.cuh). Tiles are those of this launch.
struct PairRanges {
  int count, length;
  long long first_place;  // of the launch's first tile
  void* states;  // [tile][range][state of a thread][thread] partial states
  unsigned* arrived;  // [tile] ranges that are done
};

// A tile of pairs, and what becomes of its values.
struct PairArguments {
  struct PairSide x, z;
  const void* w;  // [k]
  struct PairParameters params;
  struct PairColumns v;
  struct PairOutput out;
  long long m, n, tiles_m, tiles_n;
  int k;  // rows of the panels: features, or words of four bytes
  int features, chunk, splits, symmetric;
  struct BatchAxes groups;
  struct PairMembers members;
  struct PairPlanes planes;
  struct MixedPairs mixed;
  struct ExpandedPairs expanded;
  struct SplitPairs split;
  struct CandidateArguments found;
  struct PairRanges ranges;
};

// Operands of products in float64 (double_operands.cuh).
struct DoubleSide {
  const double* values;  // panels
  double* image;         // [ld / 64][image_k][64]
  double* rows;          // [ld][image_k] the values again, as rows: for repairs of squares
  double* norms;         // [ld] of squares
  long long count, ld;
};
struct DoubleArguments {
  struct SplitState* state;
  struct DoubleSide side[2];
  const double* weights;  // [k] or null
  double* centre;         // [k]
  long long k, image_k;   // features; rows of an image, whole slices
  int sides;
  unsigned most_sampled;
  struct UniformFactors uniforms;
};

// Values of a range of n, stored as an operand (bilinear_kept.cuh).
struct KeptImage {
  unsigned char* image;      // [32 points m][unit of 32 n][32][128 bytes]
  float* scale;              // [rows] of its points, below zero
  struct SplitState* state;  // of the product with it; the one before tells whether values were kept so far
  long long rows, units;     // rows: whole blocks
};
// Columns of v, as the other operand (kept_operands.cuh).
struct KeptArguments {
  const float* v;  // [column][v_ld]
  struct SplitState *split, *state;  // of the values; of their products, one of each part after an empty one
  unsigned char* image;  // [part of n][32 columns][unit of 32 n][32][128 bytes]
  float* scale;          // [part of n][padded]
  long long n, v_ld, units, states;
  int columns, padded;  // padded: to whole blocks
};

// Operands of the products.
struct BilinearSide {
  const unsigned char* image;
  const float *norm, *norm_tail, *scale;
};
struct BilinearArguments {
  struct PairArguments pairs;
  struct BilinearSide x, z;
  long long units;  // of an image
  long long x_end, z_end;  // points of the images, from their first ones on
  int group;        // strips of m that go together through n
  int first_strip, end_strip;  // of a launch, a multiple of `group` and the end
  int ranges;       // of the features, each by a block of its own: few tiles of many features
  float* partial;   // [strip of m][tile of n][range][warp][sum][lane], where there are several
  unsigned* arrived;  // [strip of m][tile of n][warp] ranges that are there; zeroed before
  const unsigned char* v_image;  // of many columns (wide_operands.cuh)
  // Where pairs weigh products of other operands, whose units follow in both images (rank_field.cuh).
  const float* shares;  // [z ld] what the columns of v have of a sum of squares
  float* spread;        // [split][partial_ld] these sums
  const float* times;  // [z ld] what the values of side sums are multiplied with
  float* side_sums;  // [split][side sum][partial_ld]
  const float *weights, *weights_scale;  // [m][n] a matrix in place of those products; what it is multiplied with
  long long weights_row, weights_column;
  int weights_whole;    // 16 bytes of it can be read at once, along the axis whose neighbours lie together
  float* extra;  // [split][column][partial_ld] the product of one more value, with columns of its own
  int extra_columns;  // 0: this pass makes none
  struct KeptImage kept;
};

// v for products over n with many columns.
struct WideArguments {
  // State of squares that may be expanded: these take halves, and the tile next to them floats; null: they are not.
  const struct ExpandedState* expanded;
  const float* v;  // of point n and a column: v[n * v_row + column * v_column]
  float* image;
  struct SplitState* split;  // told of the largest |v| by halves; floats are written as well where these are not
                             // taken; or null
  const float *norm, *norm_tail, *scale;  // of the points n, which follow in the image of powers of two; or null
  const float* extra;  // [column][extra_ld] of columns after those
  long long n, v_row, v_column, extra_ld, blocks;  // blocks of 32 points
  int columns, wide;                      // there are; in the image
  int extra_columns, extra_wide;
  int by_fours;                           // the order of points for stored values (wide_stored.cuh)
  int block_bytes;                        // of 32 points in the image
};

// One or both sides, blockIdx.z of them.
struct PackBothArguments {
  struct PackArguments side[2];
};

struct FillArguments {
  double* to;
  int count;
  double numbers[MERCER_FILL_NUMBERS];
};

// Parameters and uniforms of every batch item.
struct UniformArguments {
  const void* params[MERCER_MAX_NUMBERS];  // null: numbers[p]
  int dtype[MERCER_MAX_NUMBERS];
  long long step[MERCER_MAX_NUMBERS][MERCER_MAX_AXES];
  double numbers[MERCER_MAX_NUMBERS];
  struct BatchAxes axes;
  long long items;
  double features;
  double* wide;   // [item][param + uniform]
  void* narrow;   // the same in the computing type
};

// What is left of a fold over n: partial states of every range of n become out.
struct MergeArguments {
  const void* partial;  // [group][split][column][ld]; logsumexp: maxima, then sums after all of them
  const void* partial_index;  // argmax, argmin
  void* out;
  long long m, ld, out_row, out_column;
  int columns, splits;
  const struct SplitState* state;  // of products whose values may be stored (bilinear_kept.cuh), or null
  int rated;                       // whether those that are stored are merged
  int adds;                        // products alone: to what out has
  struct BatchAxes groups;
  long long out_step[MERCER_MAX_AXES];
};

// The gradient field: out[o, m, k] = sum over n of coef[o, n] * phi(x, z, pair values).
struct FieldArguments {
  const void *x, *z;      // features [k][ld]
  const void *row, *col;  // the caller's values [ld]
  const void* w;          // [k]
  const void* params;     // null: numbers
  const void* pair;       // [plane][m][ld], n along the rows
  const void* coef;       // [n][ld], outputs along the rows
  void* out;
  long long m, n, x_ld, z_ld, coef_ld;
  long long pair_row, pair_plane;
  long long out_output, out_row, out_feature, out_split;
  int k, outputs;
  double numbers[MERCER_MAX_NUMBERS];  // of the computing type, packed
  const unsigned char* marks;  // [m][k / 64] what is to be computed; null: everything
};

// A field of few features (few_features.cuh).
struct FewFeaturesArguments {
  struct PairArguments pairs;
  struct FieldArguments field;  // of the outputs of a pass
  const void *coefs, *rows;     // [output][ld] along the points z; the same of the points x, or null
  long long coefs_ld, rows_ld;
  const void* weights;          // [m][n] a matrix in their place
  long long weights_row, weights_column;
  int weights_whole;            // 16 bytes of a row of it can be read at once
  void* side_sums;  // [range][side sum][m]
};

// Amplitudes of a row: the largest, the sum of those that are equal to it, and of the others (field_rows.cuh).
struct RowAmplitudes {
  float largest, equal, others;
};

// A field on tensor cores (field_products.cuh, field_operands.cuh).
struct FieldProductArguments {
  struct FieldArguments field;  // of some rows m
  unsigned char* z_image;
  unsigned short* x_codes;      // [block of z][k][codes_ld], where only the order matters
  float* coefs;                 // image
  unsigned char* marks;         // [m][k / 64] set where products do not give the result
  const unsigned char* wanted;  // as `marks`: rows to be computed; null: all of them
  // Values in units (field_rows.cuh).
  float *row_units, *column_units;  // [m], [column]
  struct RowAmplitudes* row_amplitudes;  // [range][m]
  float* row_sums;                       // [range][column][m] sums of magnitudes
  unsigned char* left;              // as `wanted`, of those that cannot be
  int* power_shifts;                // [k] powers of two, of powers of differences
  unsigned* refused;                // set where no row can be, for the differences' sake
  int ranges;                       // of n, that rows are examined in
  long long codes_ld;
  int groups;                   // of 16 features, in the image
};

// A field of a linear factor, as a product of matrices (linear_field.cuh).
struct LinearSide {
  unsigned char* image;  // pieces, as of SplitSide
  float *norm, *scale;   // [ld] below 0 where pieces cannot carry it; undoes the power of two
  long long count, ld;
};
struct LinearArguments {
  struct FieldArguments field;      // of some rows m and the outputs of a pass
  struct SplitState* state;         // `sampled` where a column cannot be carried
  struct LinearSide rows, columns;  // amplitudes; coefficients times features
  const float* coefs;               // [output][coefs_ld], n along the rows
  const float* x_rows;              // points x of a difference, features in a row, x_row apart
  float* centre;                    // [k]
  float* largest;                   // [k + outputs] of features, then of coefficients
  float* spread;                    // [output][spread_ld]
  float* row_largest;               // [range][rows.ld]
  float* row_least;                 // the same of the least but zero, of products of values (OF_PRODUCT)
  unsigned* lossy;                  // whether a column of v has digits that pieces do not carry
  float* row_spread;                // [range][output of a pass][rows.ld]
  const float* products;            // [m][products_ld]
  unsigned char* marks;             // [m][k / 64] rows left to others
  long long coefs_ld, spread_ld, products_ld, units, x_row;
  int ranges;  // of n, that rows are examined in
};

// A field of a linear factor in float64, as `LinearArguments` in float32 (linear_doubles.cuh).
struct LinearDoublesArguments {
  struct FieldArguments field;  // of some rows m and the outputs of a pass
  const double* coefs;          // [output][coefs_ld], n along the rows
  const double* x_rows;         // points x of a difference, features in a row, x_row apart
  double* centre;               // [k]
  double* lengths;              // [ld] squares of |z'|
  double* columns;              // [output][k][ld] coefficients times features
  double* amplitudes;           // [m][ld]; null where they are the first plane
  double* row_largest;          // [rows_ld] the largest amplitude
  double *row_sums, *row_spread;  // [output][rows_ld] of amplitudes times coefficients; of squares of these and of z'
  const double* products;       // [split][m][products_ld]
  unsigned* refused;            // whether a column's values are too large or too small
  unsigned char* marks;         // [m][k / 64] rows left to others
  long long coefs_ld, ld, rows_ld, x_row, products_ld, products_split;
  int splits;
};

// Factors of a pass, whose products weigh the pairs.
struct RankFactors {
  const float *rows, *columns;  // [factor][ld] of the points x, null for ones, and of z
  long long rows_ld, columns_ld;
  int count, units;  // without units each factor of z has an output of its own
  float *row_scales, *column_scales;  // [ld], [output][z ld]: undo their powers of two, or are the factors
  unsigned* most;  // [output] largest of a column's factors
};

// A matrix in place of products of factors.
struct RankWeights {
  const float* data;  // [m][n], or null
  long long row, column;
  float* scale;  // a power of two, by which its samples come to lie below one
};

// Columns of the product with v that a field becomes, and its sums.
struct RankColumns {
  float *v, *shares;  // [output][k + difference][ld]; [z ld]
  long long ld;
  const float *partial, *spread;  // [split][output][k + difference][partial_ld]; [split][partial_ld]
  long long partial_ld;
  int splits;
};

// Side sums of rows: `summed` of them have the weights of the pairs, one the single factor of z alone. Products of a
// value with each of several factors are extra columns.
struct RankSide {
  float* times;  // [z ld] what the values of side sums are multiplied with
  const float* partial;  // [split][side sum][partial_ld]
  const float* extra;  // [split][extra_columns][partial_ld]
  int summed, with_product, extra_columns;
  float *sums, *product;  // where they go, or null
  long long sums_first, sums_row, product_row, product_column;
};

// A field of a linear factor whose pairs weigh products of two factors (rank_field.cuh).
struct RankFieldArguments {
  struct PairArguments pairs;  // both sides' panels
  struct FieldArguments field;
  struct SplitState* state;
  unsigned char *x_image, *z_image;
  long long units, first_unit;  // of an image; where those of the factors begin
  struct RankFactors factors;
  struct RankWeights weights;
  struct RankColumns columns;
  struct RankSide side;
  int outputs;
  int difference;  // x - z in place of z
  float scale;
  const float* centre;  // [k]
  int adds;  // to what out has
  unsigned* left;  // number of the rows that are left to differences, then these rows
  int row_blocks;  // of rank_rows
};

// Weights of pairs (pair_weights.cuh).
struct PairWeightArguments {
  const void *rows, *columns;  // [factor][ld]
  void* out;
  long long m, n, rows_ld, columns_ld, out_row, out_column;
  int factors;
};

// Stored reductions of pairs that become amplitudes, and side sums (stored_sums.cuh).
struct StoredSumArguments {
  void* planes;                // [plane][m][row], n along the rows
  const void* weights;         // of the pairs, likewise; null: `single` [n] and `row_weights` [m] in their place
  const void *single, *row_weights;
  const void* columns;         // [column][columns_ld] of v
  const void *row_values, *col_values;  // the caller's, [m] and [n]
  void *partial, *sums, *product;  // [range][state][partial_ld]; results
  const void* params;          // null: numbers
  long long m, n, row, plane, columns_ld, partial_ld, ranges;
  long long sums_first, sums_row, product_row, product_column;
  double features;
  int count;   // columns there are
  int stores;  // amplitudes, and sums with weights
  int adds;    // to what results have
  double numbers[MERCER_MAX_NUMBERS];  // of the computing type, packed
};

struct SumArguments {
  const void* partial;  // [split][output][m][k]
  void* out;
  long long m, k, split, out_output, out_row, out_feature;  // split: from one range to the next
  int outputs, splits;
  int adds;  // to what out has
};

// The smallest of each row's candidates; `pairs` has them, and what their values are made of.
struct RankArguments {
  struct PairArguments pairs;
  void *out_values, *out_indices;
  long long out_values_row, out_values_col, out_indices_row, out_indices_col;
  unsigned count, kept;  // wanted; kept until the last, as values of products are not the last word
};

// The smallest values of each row.
struct NearestArguments {
  const void* values;  // [m][n]
  void* keys;          // scratch [m][key_row] of 16 bytes: a power of two, at least `count`
  void *out_values, *out_indices;
  long long n, count, value_row, key_row;
  long long out_values_row, out_values_col, out_indices_row, out_indices_col;
};

// A blocked factorisation (split_factor.cuh), column-major.
struct FactorArguments {
  float* a;
  long long n, stride, first;
  int undoes, block;
  int *halves, *scales;  // [n] of exponents that were taken away; whether any was
  int* bad;              // order of the first minor that failed
  int* said;
};

// A panel of an LU factorisation (lu_panel.cuh), by rows; everything counts from its first row and column.
struct LuPanelArguments {
  float* a;
  long long stride, rows, first;  // first: the panel's row and column of the matrix
  int width;
  long long* pivots;  // [width], from 1 on, of the matrix
  int *from, *to;     // [width] rows that come to be the first ones; where those go that leave them, or -1
  int* said;          // the first pivot that is zero, from 1 on
};

// What lies around the panels of an LU factorisation (lu_steps.cuh), by rows.
struct LuState {
  unsigned far;      // some column is far from 1
  unsigned uneven;   // columns reach too far to be scaled without loss
  unsigned highest, lowest;  // bits of the largest and the least of the columns' largest values
  unsigned least;    // likewise of the rows', of the scaled matrix
  unsigned strays;   // of a block: some row or column is left to update_strays
};
struct LuArguments {
  float* a;
  long long n, stride, first;  // first: row and column of the block at work
  int block;                   // its columns
  int column, width;           // of the panel at work, from the block's first column on
  int undoes;
  struct LuState* state;
  unsigned *most, *least;      // [n] of columns
  int *from, *to;              // of the panel
  int* order;                  // [n] of the block: from which of its rows each came
  int *block_from, *block_to;  // [block] the same as from and to, of a block
  int* permutation;            // [n] of the whole matrix
  int* exponents;              // [block] of rows of U
  float *l, *u;                // [n][block], [block][n]: operands of the update
  unsigned char *stray_rows, *stray_columns;  // [n]
  // Right-hand sides, by columns.
  const float* given;
  float* columns;
  long long count;
};

// A triangle of a matrix, by rows, and right-hand sides, by columns (triangles.cuh).
struct TriangleArguments {
  const float* a;
  float* b;
  long long stride, b_stride, n, count;
  long long first;     // row of the block at work
  long long from, to;  // rows that its solutions are taken from
};
// A lower triangle of few rows, and right-hand sides of the same stride.
struct WideTriangleArguments {
  const float* a;
  float* b;
  long long stride, count;
  int rows;
};

// out = alpha a v + beta b for a matrix a and a few columns v (few_columns.cuh).
struct FewColumnsArguments {
  const void *a, *v, *b;  // b is null or [rows, columns]
  void *sums, *out;       // sums [parts][columns][sums_stride]
  long long rows, depth, columns;
  long long stride, v_stride, b_stride, out_stride, sums_stride;  // the last a multiple of a vector
  long long part;                                                 // rows of v in a part
  double alpha, beta;
  int parts;
  int vectors;  // a suits copies of 16 bytes
};

// A matrix of a batch (dense.cuh): element (i, j) at data + i row + j col, and `packed` more for each matrix of a
// chunk that is packed, or by the walk over the caller's axes.
struct DenseSide {
  void* data;
  long long row, col, packed;
  long long step[MERCER_MAX_AXES];
};

struct DenseArguments {
  struct DenseSide from, to;
  int* status;         // of each matrix of the chunk
  const int* said;     // by the routine
  const int* adopted;  // by the routine in another attempt at those that failed
  long long rows, cols, first;  // `first`: the chunk's first matrix in the batch
  double amount;
  int part;      // that is read and written: 0 all, 1 the lower triangle, 2 the upper, 3 and 4 without the diagonal
  int examines;  // whether a value that is not finite is a failure
  int spoils;    // NaN goes where the matrix failed
  int clears;  // zeros go outside the part
  int wide;      // pivots have 64 bits, or sums
  struct BatchAxes axes;
};

// Small matrices of a batch (small_matrix.cuh). What has no data is not wanted.
struct SmallArguments {
  struct DenseSide a, out, b, x;  // x: solutions, or with `sums` a double for each column, or eigenvalues
  struct DenseSide pivots, logdet, info;  // of 64 bits
  long long b_repeat[MERCER_MAX_AXES], x_repeat[MERCER_MAX_AXES];
  struct BatchAxes outer, inner;  // along which a varies, and the rest
  long long matrices, repeats, columns;
  int *status, *failed;  // what info says of each matrix; whether one is not 0
  int order;
  int factors;     // a holds a matrix, not its factor
  int lower;       // of a, that triangle alone
  int transposed;  // a holds the factors of the transpose of what is solved with
  int sums;
  int skipped, count;  // eigenvalues that are not wanted, and how many are from there on
  int attempts;
  double jitter[MERCER_MAX_NUMBERS];  // [attempts]
};

// Long columns of a block method, one after another (columns.cuh).
struct ColumnArguments {
  void* data;           // [columns][rows]
  const void* product;  // likewise
  const double* values;  // [columns]
  double* sums;          // [columns][blocks]
  long long rows, columns;
  unsigned long long seed;
};

// A block that becomes orthonormal (columns.cuh).
struct GramArguments {
  const void* gram;           // [count][count]
  void* inverse;              // likewise
  double* factor;             // likewise
  const void *once, *again;   // [count][first], what the block had along the columns before it, of both passes
  double* h;                  // [columns][stride]
  int* put_off;
  double rounding, least;     // parts of a block that are too small to be kept, of its largest and at all
  long long first, count, stride;
};

// Eigenpairs of a symmetric matrix of some hundred rows (tridiagonal.cuh). Arrays of m but for what is said.
struct TridiagonalArguments {
  const double* h;                // [columns][stride], the upper triangle
  double* scale;                  // a power of two that brings |h| to at most 1; 0 for h = 0
  double* columns;                // [2][m], on their way to all blocks
  double *d, *e, *tau, *v;        // v [reflections][m]
  double* w;                      // all values, ascending
  const double* wanted;           // [count] of them
  double *y, *rows;               // [count][m] and [4][m][count]
  long long m, stride, count;
  unsigned long long seed;
};

// Maps of low rank and Cholesky's factor by columns (low_rank.cuh). Elements of a column are neighbours.
struct LowRankArguments {
  void* to;                // [rows, columns]
  const void* from;        // likewise
  const double *weights, *column_weights;  // or null
  double *sums, *values;
  const long long* indices;
  long long rows, columns, to_step, from_step;  // from one column to the next
  long long row_step, column_step;              // of the weights
};

// What a pass over neighbouring factors of a Kronecker product reads or writes, in elements. Their axes are joined to
// one; after it element a lies a / columns * behind + a % columns * column on.
struct KronSide {
  void* data;
  long long left, axis, columns, behind, column;
  long long item_step[MERCER_MAX_AXES], row_step[MERCER_MAX_AXES];
};

#define MERCER_MAX_KRON 16  // factors of a pass

struct KronMatrix {
  const void* data;
  long long p_stride, q_stride, item_step[MERCER_MAX_AXES];
};

struct KronArguments {
  struct KronSide from, to, y;  // y.data is null where nothing is added
  struct KronMatrix factors[MERCER_MAX_KRON];
  struct BatchAxes items, rows;
  long long item_count, row_count, left, right;
  double alpha, beta;
};
