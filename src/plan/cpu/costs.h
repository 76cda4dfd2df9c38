// What ways cost on a CPU: nanoseconds of one core, all in one place (measured on Zen 5 at 4.3 GHz with AVX-512 and
// float32; float64 takes twice as long where vectors are counted). A choice among ways needs their ratios alone.
#pragma once

namespace mercer::plan::cpu {

struct Costs {
  double cycle = 0.15;            // of plan::count_pipes, of which the core makes nearly two at once
  // packed_tile
  double packed_call = 650;       // what a call and an item of a batch take in addition to their points
  double pack = 0.37;             // a feature of a point that is packed
  double pack_wide = 3.5;         // that of float64, in these
  double write = 0.1;             // a pair whose tile is written as it is
  double copy = 0.8;              // a pair whose tile is copied: edges, other types and strides
  double stage = 0.15;            // a feature of a point for a sum of one side
  // packed_halves
  double mirror = 0.9;            // a pair that is copied across the diagonal
  // few_points
  double few_call = 250;
  double few_pair = 0.75;         // the sum over the lanes
  double few_vector[5] = {0, 0.155, 0.18, 0.27, 0.23};  // a vector of features of a pair, by PairSum
  double few_narrow = 1.2;        // of 256 bits, in these
  double few_epilogue = 0.1;      // a pair whose sum goes through memory to its epilogue
  double few_byte = 0.006;        // of points
  double turned = 0.3;            // a feature of a point of z that is turned into columns
  double few_row = 0.6, few_step = 0.14;  // a vector of pairs there, and a feature of it
  // byte_sums
  double byte_call = 600;
  double byte_feature = 0.08;     // a feature of a point
  double byte_pair = 0.1, byte_sum[5] = {0, 0.0022, 0.0022, 0.0025, 0.0048};  // and a feature of it, by PairSum
  // amx_digits: measured on Sapphire Rapids, next to packed_tile there
  double digit_call = 2500;
  double digit_point = 20, digit_feature = 0.45;  // a point that is taken apart, and a feature of it
  double digit_pair = 0.25, digit_term = 0.002;  // and a feature of it
  double digit_product = 2.5;     // against gemm, in these: there it takes so many times less than its own numbers say
  // gemm
  double gemm_call = 850, gemm_pair = 0.08, gemm_term = 0.0168, gemm_byte = 0.04;
  // products with v
  double stored_call = 1500;      // the call of pairwise that stores values
  double product_state = 1.4;     // an element of the result that is kept in double and written
  double product_term = 0.0105;   // a pair and column
  double product_v = 2.2;         // an element of v, which is packed
  // neighbours: one that is kept, by a tile's heaps and in the rows of stored values; a point that has some; a pair
  double heap_step = 30, ordered_step = 7;
  double nearest_point = 40, nearest_pair = 0.06, stored_pair = 0.15;
  // gradients by both sides: in two passes, each of the pairs as its rows have them, and in one of both
  double pass_call = 40000, pass_point = 20, pass_feature = 1.2;
  double pass_pair = 3.5, pass_column = 0.15, pass_term = 0.16;
  double both_call = 25000, both_point = 10, both_feature = 0.6;
  double both_pair = 2, both_column = 0.1, both_term = 0.1;
};

}  // namespace mercer::plan::cpu
