#include "plan/forms/field_beyond.h"

#include <algorithm>

#include "ir/passes/passes.h"
#include "plan/forms/guarded_sums.h"

namespace mercer::plan {
namespace {

using ir::Site;

int place_or_add(std::vector<Expr>& list, const Expr& e) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const Expr& known) { return same(known, e); });
  if (at != list.end()) return static_cast<int>(at - list.begin());
  list.push_back(e);
  return static_cast<int>(list.size()) - 1;
}

/// The slots of one split's parameters and uniforms among those of a field.
std::vector<int> slots_of(const std::vector<Expr>& params, const std::vector<Expr>& uniforms, ir::FieldSplit& field) {
  std::vector<int> slots;
  for (const Expr& param : params) slots.push_back(place_or_add(field.params, param));
  for (const Expr& uniform : uniforms) slots.push_back(-1 - place_or_add(field.uniforms, uniform));
  return slots;
}

/// Uniforms, below 0 in `slots`, come after all parameters.
void take_slots(ir::Program& program, const std::vector<int>& slots, const ir::FieldSplit& field) {
  for (ir::Input& input : program.inputs) {
    if (input.site != Site::param) continue;
    const int slot = slots[static_cast<std::size_t>(input.slot)];
    input.slot = slot >= 0 ? slot : static_cast<int>(field.params.size()) - 1 - slot;
  }
}

/// Whether a NaN in place of a marked value is one of the whole: it is no part of what is compared or chosen by.
bool shows_marks(const Expr& phi, const std::vector<Expr>& values) {
  using ir::Op;
  const auto has_mark = [&](const Expr& e) {
    bool any = false;
    ir::for_each(e, [&](const Expr& node) {
      if (node->op != Op::pair_value || node->slot >= static_cast<int>(values.size())) return;
      any = any || !is_condition(values[static_cast<std::size_t>(node->slot)]);
    });
    return any;
  };
  bool shows = true;
  ir::for_each(phi, [&](const Expr& e) {
    const bool compares = is_condition(e) || e->op == Op::min || e->op == Op::max || e->op == Op::sign;
    if (compares) shows = shows && !has_mark(e);
    if (e->op == Op::where) shows = shows && !has_mark(e->args[0]);
    if (e->op == Op::pow || e->op == Op::copysign) shows = shows && !has_mark(e->args[1]);
  });
  return shows;
}

bool shows_marks(const ir::FieldSplit& field) {
  const std::vector<Expr>& values = field.pair_outputs;
  return !std::all_of(values.begin(), values.end(), is_condition) && shows_marks(field.field, values) &&
         (field.extra.empty() || shows_marks(field.extra, values));
}

}  // namespace

bool is_condition(const Expr& value) {
  using ir::Op;
  return value->op == Op::logical_not || (value->op >= Op::less && value->op <= Op::logical_or);
}

bool FieldBeyond::reads_weights() const {
  const auto reads = [](const ir::Program& program) { return reads_site(program, {Site::w}); };
  return reads(largest) || reads(update) || reads(phi) || reads(extra);
}

FieldBeyond field_beyond(const ir::FieldSplit& scaled, ir::FieldSplit& field) {
  if (scaled.again.empty() || scaled.scaled_extra.empty() != field.extra.empty() || !shows_marks(field)) return {};
  GpuGuard guard;
  const ir::Split split = split_guarded(scaled.again, guarded_outputs(scaled.again, true), {.hoist = false},
                                        Dtype::float64, guard);
  if (!guard || !split.stages.empty()) return {};
  ir::LowerOptions options;
  options.type = Dtype::float64;
  options.params = scaled.param_leaves();
  options.processor = ir::Processor::gpu;
  const auto lower = [&](const Expr& phi) { return phi.empty() ? ir::Program{} : ir::lower({phi}, options); };
  const auto marked = std::find_if_not(field.pair_outputs.begin(), field.pair_outputs.end(), is_condition);
  FieldBeyond beyond{guard.identity,
                     guard.largest,
                     guard.update,
                     guard.epilogue,
                     lower(scaled.scaled),
                     lower(scaled.scaled_extra),
                     static_cast<int>(marked - field.pair_outputs.begin())};
  for (const ir::Program* program : {&beyond.largest, &beyond.update, &beyond.epilogue, &beyond.phi, &beyond.extra})
    if (reads_site(*program, {Site::row, Site::col, Site::index_i, Site::index_j})) return {};
  const std::vector<int> of_values = slots_of(split.params, split.uniforms, field),
                         of_phi = slots_of(scaled.params, scaled.uniforms, field);
  for (ir::Program* program : {&beyond.largest, &beyond.update, &beyond.epilogue})
    take_slots(*program, of_values, field);
  for (ir::Program* program : {&beyond.phi, &beyond.extra}) take_slots(*program, of_phi, field);
  return beyond;
}

}  // namespace mercer::plan
