// Every number of Costs by its name, in the order of the header: what records, scaling and the tables of
// docs/design/costs.md go by.
#pragma once

#include <cstdint>

#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

/// What limits a time: multiply-adds by lanes and clock, bytes a second, products a second. Sizes are the same for all
/// generations, and so are times that have been compared with each other on an H200 alone.
enum class Limit : std::uint8_t { none, float_lanes, double_lanes, memory, products, double_products };

/// Sizes from which ways pay, and values that are stored.
template <class AnyCosts, class Visit>
void each_way_cost(AnyCosts& costs, const Visit& visit) {
  visit("tensor_cores_from", costs.tensor_cores_from);
  visit("wide_from", costs.wide_from);
  visit("expanded_from", costs.expanded_from);
  visit("much_mixed_work", costs.much_mixed_work);
  visit("more_parts", costs.more_parts);
  visit("some_parts", costs.some_parts);
  visit("mixed_pairs", costs.mixed_pairs);
  visit("sums_features", costs.sums_features);
  visit("candidates_from", costs.candidates_from);
  visit("candidates_rows", costs.candidates_rows);
  visit("by_warps", costs.by_warps);
  visit("part_bytes", costs.part_bytes);
  visit("mask_strip", costs.mask_strip);
  visit("mask_byte", costs.mask_byte);
  visit("stored_call", costs.stored_call);
  visit("stored_least_points", costs.stored_least_points);
  visit("stored_columns", costs.stored_columns);
  visit("stored.pass", costs.stored.pass, Limit::float_lanes);
  visit("stored.feature", costs.stored.feature, Limit::float_lanes);
  visit("stored.store", costs.stored.store, Limit::memory);
  visit("stored.stored_feature", costs.stored.stored_feature, Limit::float_lanes);
  visit("stored.column", costs.stored.column, Limit::products);
  visit("stored.multiple", costs.stored.multiple);
  visit("pieces.pass", costs.pieces.pass, Limit::float_lanes);
  visit("pieces.feature", costs.pieces.feature, Limit::float_lanes);
  visit("pieces.store", costs.pieces.store, Limit::memory);
  visit("pieces.stored_feature", costs.pieces.stored_feature, Limit::float_lanes);
  visit("pieces.column", costs.pieces.column, Limit::products);
  visit("pieces.multiple", costs.pieces.multiple);
  visit("float64.pass", costs.float64.pass, Limit::double_lanes);
  visit("float64.feature", costs.float64.feature, Limit::double_lanes);
  visit("float64.store", costs.float64.store, Limit::memory);
  visit("float64.stored_feature", costs.float64.stored_feature, Limit::double_lanes);
  visit("float64.column", costs.float64.column, Limit::double_products);
  visit("float64.multiple", costs.float64.multiple);
}
/// Tiles and epilogues.
template <class AnyCosts, class Visit>
void each_tile_cost(AnyCosts& costs, const Visit& visit) {
  visit("tensor_cores.least_points", costs.tensor_cores.least_points);
  visit("tensor_cores.least_doubles", costs.tensor_cores.least_doubles);
  visit("tensor_cores.pairs_features", costs.tensor_cores.pairs_features);
  visit("tensor_cores.folds_features", costs.tensor_cores.folds_features);
  visit("tensor_cores.fixup_from", costs.tensor_cores.fixup_from);
  visit("tensor_cores.range_features", costs.tensor_cores.range_features);
  visit("tensor_cores.most_ranges", costs.tensor_cores.most_ranges);
  visit("tensor_cores.wide_tile", costs.tensor_cores.wide_tile);
  visit("tensor_cores.middle_tile", costs.tensor_cores.middle_tile);
  visit("tensor_cores.narrow_tile", costs.tensor_cores.narrow_tile);
  visit("tensor_cores.tile_epilogue", costs.tensor_cores.tile_epilogue);
  visit("tensor_cores.tile_start", costs.tensor_cores.tile_start);
  visit("tensor_cores.tile_join", costs.tensor_cores.tile_join);
  visit("tensor_cores.most_columns_of_few", costs.tensor_cores.most_columns_of_few);
  visit("tensor_cores.most_columns", costs.tensor_cores.most_columns);
  visit("tensor_cores.most_columns_of_values", costs.tensor_cores.most_columns_of_values);
  visit("ranges.from", costs.ranges.from);
  visit("ranges.most_pairs", costs.ranges.most_pairs);
  visit("ranges.latency", costs.ranges.latency);
  visit("ranges.join", costs.ranges.join);
  visit("ranges.start", costs.ranges.start);
  visit("ranges.gain", costs.ranges.gain);
  visit("ranges.products_call", costs.ranges.products_call);
  visit("kept.feature", costs.kept.feature);
  visit("kept.pass", costs.kept.pass);
  visit("kept.pass_column", costs.kept.pass_column);
  visit("kept.store", costs.kept.store);
  visit("kept.column", costs.kept.column);
  visit("kept.call", costs.kept.call);
  visit("kept.gain", costs.kept.gain);
  visit("kept.least_rows", costs.kept.least_rows);
  visit("expanded.few_features", costs.expanded.few_features);
  visit("expanded.few_columns", costs.expanded.few_columns);
  visit("expanded.warp_columns", costs.expanded.warp_columns);
  visit("expanded.blocks_columns", costs.expanded.blocks_columns);
  visit("expanded.blocks", costs.expanded.blocks);
  visit("differences.features", costs.differences.features);
  visit("differences.busy", costs.differences.busy);
  visit("differences.symmetric_rounds", costs.differences.symmetric_rounds);
  visit("differences.slots", costs.differences.slots);
  visit("epilogue.instructions", costs.epilogue.instructions);
  visit("epilogue.slots", costs.epilogue.slots);
  visit("epilogue.gradient_slots", costs.epilogue.gradient_slots);
  visit("epilogue.row_instructions", costs.epilogue.row_instructions);
}
/// Gradients and backwards.
template <class AnyCosts, class Visit>
void each_gradient_cost(AnyCosts& costs, const Visit& visit) {
  visit("extra.one", costs.extra.one);
  visit("extra.four", costs.extra.four);
  visit("extra.sixteen", costs.extra.sixteen);
  visit("extra.doubles", costs.extra.doubles);
  visit("extra.products_columns", costs.extra.products_columns);
  visit("gradient.least_points", costs.gradient.least_points);
  visit("gradient.product_features", costs.gradient.product_features);
  visit("gradient.wide_field_share", costs.gradient.wide_field_share);
  visit("gradient.linear_rows", costs.gradient.linear_rows);
  visit("gradient.linear_columns", costs.gradient.linear_columns);
  visit("gradient.double_features", costs.gradient.double_features);
  visit("gradient.matrix_points", costs.gradient.matrix_points);
  visit("gradient.thread_reads", costs.gradient.thread_reads);
  visit("gradient.thread_gain", costs.gradient.thread_gain);
  visit("gradient.rank_features", costs.gradient.rank_features);
  visit("gradient.rank_points", costs.gradient.rank_points);
  visit("gradient.rank_pass", costs.gradient.rank_pass);
  visit("gradient.rank_stored", costs.gradient.rank_stored);
  visit("gradient.rank_output", costs.gradient.rank_output);
}
/// Kronecker products.
template <class AnyCosts, class Visit>
void each_kron_cost(AnyCosts& costs, const Visit& visit) {
  visit("kron.step.start", costs.kron.step.start);
  visit("kron.step.bytes", costs.kron.step.bytes);
  visit("kron.step.flops", costs.kron.step.flops);
  visit("kron.step.multiprocessors", costs.kron.step.multiprocessors);
  visit("kron.chain.start", costs.kron.chain.start);
  visit("kron.chain.bytes", costs.kron.chain.bytes);
  visit("kron.chain.slots", costs.kron.chain.slots);
  visit("kron.chain.tensor", costs.kron.chain.tensor);
  visit("kron.chain.tensor_elements", costs.kron.chain.tensor_elements);
  visit("kron.chain.eights", costs.kron.chain.eights);
  visit("kron.chain.doubles", costs.kron.chain.doubles);
  visit("kron.chain.shared_pairs", costs.kron.chain.shared_pairs);
  visit("kron.chain.shared_many", costs.kron.chain.shared_many);
  visit("kron.chain.shared_two", costs.kron.chain.shared_two);
  visit("kron.chain.shared_one", costs.kron.chain.shared_one);
  visit("kron.chain.shared_ring", costs.kron.chain.shared_ring);
  visit("kron.chain.own_many", costs.kron.chain.own_many);
  visit("kron.chain.own_pairs", costs.kron.chain.own_pairs);
  visit("kron.chain.own_one", costs.kron.chain.own_one);
  visit("kron.chain.short_lines", costs.kron.chain.short_lines);
  visit("kron.chain.tiny_lines", costs.kron.chain.tiny_lines);
  visit("kron.chain.arithmetic", costs.kron.chain.arithmetic);
  visit("kron.wide.from", costs.kron.wide.from);
  visit("kron.wide.start", costs.kron.wide.start);
  visit("kron.wide.image", costs.kron.wide.image);
  visit("kron.wide.product", costs.kron.wide.product);
  visit("kron.wide.bytes", costs.kron.wide.bytes);
  visit("kron.wide.tile", costs.kron.wide.tile);
  visit("kron.doubles.start", costs.kron.doubles.start);
  visit("kron.doubles.bytes", costs.kron.doubles.bytes);
  visit("kron.doubles.shared_bytes", costs.kron.doubles.shared_bytes);
  visit("kron.doubles.image_bytes", costs.kron.doubles.image_bytes);
  visit("kron.doubles.stage", costs.kron.doubles.stage);
  visit("kron.doubles.alone", costs.kron.doubles.alone);
  visit("kron.doubles.store", costs.kron.doubles.store);
  visit("kron.doubles.again", costs.kron.doubles.again);
  visit("kron.doubles.overlap", costs.kron.doubles.overlap);
  visit("kron.doubles.narrow_lines", costs.kron.doubles.narrow_lines);
  visit("kron.doubles.single", costs.kron.doubles.single);
  visit("kron.doubles.three_groups", costs.kron.doubles.three_groups);
  visit("kron.doubles.two_groups", costs.kron.doubles.two_groups);
  visit("kron.doubles.one_group", costs.kron.doubles.one_group);
}
/// Dense linear algebra, and arrays of the host.
template <class AnyCosts, class Visit>
void each_other_cost(AnyCosts& costs, const Visit& visit) {
  visit("dense.part_bytes", costs.dense.part_bytes);
  visit("dense.small_until", costs.dense.small_until);
  visit("dense.blocked_from", costs.dense.blocked_from);
  visit("dense.blocked_batch_from", costs.dense.blocked_batch_from);
  visit("dense.alone_until", costs.dense.alone_until);
  visit("dense.lu.from", costs.dense.lu.from);
  visit("dense.lu.block", costs.dense.lu.block);
  visit("dense.lu.rows", costs.dense.lu.rows);
  visit("dense.lu.cluster", costs.dense.lu.cluster);
  visit("stream.memory", costs.stream.memory);
  visit("stream.piece", costs.stream.piece);
  visit("stream.points", costs.stream.points);
  visit("stream.terms", costs.stream.terms);
}

/// visit(name, number) or visit(name, number, limit).
template <class AnyCosts, class Visit>
void each_cost(AnyCosts& costs, const Visit& visit) {
  each_way_cost(costs, visit);
  each_tile_cost(costs, visit);
  each_gradient_cost(costs, visit);
  each_kron_cost(costs, visit);
  each_other_cost(costs, visit);
}

}  // namespace mercer::plan
