// Every number of cpu::Costs by its name, in the order of the header: what records and fits go by.
#pragma once

#include "plan/cpu/costs.h"

namespace mercer::plan::cpu {

/// What a number counts: nanoseconds, which a slower processor takes more of, or how many times another number.
enum class Unit { nanoseconds, times };

/// visit(name, number, unit)
template <class AnyCosts, class Visit>
void each_cost(AnyCosts& costs, const Visit& visit) {
  const auto add = [&](const char* name, auto& number) { visit(name, number, Unit::nanoseconds); };
  const auto add_times = [&](const char* name, auto& number) { visit(name, number, Unit::times); };
  add("cycle", costs.cycle);
  add("packed_call", costs.packed_call);
  add("pack", costs.pack);
  add_times("pack_wide", costs.pack_wide);
  add("write", costs.write);
  add("copy", costs.copy);
  add("stage", costs.stage);
  add("mirror", costs.mirror);
  add("few_call", costs.few_call);
  add("few_pair", costs.few_pair);
  add("few_vector.product", costs.few_vector[1]);
  add("few_vector.square", costs.few_vector[2]);
  add("few_vector.absolute", costs.few_vector[3]);
  add("few_vector.largest", costs.few_vector[4]);
  add_times("few_narrow", costs.few_narrow);
  add("few_epilogue", costs.few_epilogue);
  add("few_byte", costs.few_byte);
  add("turned", costs.turned);
  add("few_row", costs.few_row);
  add("few_step", costs.few_step);
  add("byte_call", costs.byte_call);
  add("byte_feature", costs.byte_feature);
  add("byte_pair", costs.byte_pair);
  add("byte_sum.product", costs.byte_sum[1]);
  add("byte_sum.square", costs.byte_sum[2]);
  add("byte_sum.absolute", costs.byte_sum[3]);
  add("byte_sum.largest", costs.byte_sum[4]);
  add("digit_call", costs.digit_call);
  add("digit_point", costs.digit_point);
  add("digit_feature", costs.digit_feature);
  add("digit_pair", costs.digit_pair);
  add("digit_term", costs.digit_term);
  add_times("digit_product", costs.digit_product);
  add("gemm_call", costs.gemm_call);
  add("gemm_pair", costs.gemm_pair);
  add("gemm_term", costs.gemm_term);
  add("gemm_byte", costs.gemm_byte);
  add("stored_call", costs.stored_call);
  add("product_state", costs.product_state);
  add("product_term", costs.product_term);
  add("product_v", costs.product_v);
  add("heap_step", costs.heap_step);
  add("ordered_step", costs.ordered_step);
  add("nearest_point", costs.nearest_point);
  add("nearest_pair", costs.nearest_pair);
  add("stored_pair", costs.stored_pair);
  add("pass_call", costs.pass_call);
  add("pass_point", costs.pass_point);
  add("pass_feature", costs.pass_feature);
  add("pass_pair", costs.pass_pair);
  add("pass_column", costs.pass_column);
  add("pass_term", costs.pass_term);
  add("both_call", costs.both_call);
  add("both_point", costs.both_point);
  add("both_feature", costs.both_feature);
  add("both_pair", costs.both_pair);
  add("both_column", costs.both_column);
  add("both_term", costs.both_term);
}

}  // namespace mercer::plan::cpu
