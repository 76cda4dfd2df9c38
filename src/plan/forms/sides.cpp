#include "plan/forms/sides.h"

#include <algorithm>

#include "core/error.h"

namespace mercer::plan {

using ir::Op;

std::vector<double> numbers_of(const std::vector<Expr>& identities) {
  std::vector<double> values;
  for (const Expr& e : identities) {
    require(e->op == Op::constant, "formula: the identity of a reduction must be a number. Received {}.", e.to_text());
    values.push_back(e->value);
  }
  return values;
}

ir::Program lower_uniforms(const std::vector<Expr>& uniforms, const std::vector<Expr>& params) {
  ir::Program none;
  none.type = Dtype::float64;
  if (uniforms.empty()) return none;
  ir::LowerOptions options;
  options.type = Dtype::float64;
  options.params = params;
  return ir::lower(uniforms, options);
}

std::vector<Expr> params_of_reductions(const std::vector<Expr>& outputs) {
  std::vector<Expr> params;
  auto add = [&](const Expr& e) {
    for (const Expr& known : params)
      if (same(known, e)) return;
    if (e->op == Op::param) params.push_back(e);
  };
  for (const Expr& output : outputs)
    ir::for_each(output, [&](const Expr& e) {
      if (ir::is_reduction(e->op)) ir::for_each(e, add);
    });
  return params;
}

bool streams_read_slots(const Sides& sides, bool of_x) {
  const auto& streams = of_x ? sides.x_streams : sides.z_streams;
  return std::any_of(streams.begin(), streams.end(), [](const Sides::Stream& stream) {
    return !stream.plain && reads_site(stream.program, {ir::Site::row, ir::Site::col});
  });
}

bool are_points(const std::vector<Sides::Stream>& streams) { return streams.size() == 1 && streams[0].plain; }

namespace {

bool is_squares(const ir::StageValue& stage) {
  if (stage.update.size() != 1 || !same(stage.identity[0], 0.0)) return false;
  const Expr acc = ir::leaf(Op::accumulator, 0), feature = stage.of_x ? points().x : points().z;
  if (!same(stage.finish, acc)) return false;
  return same(stage.update[0], acc + feature * feature) || same(stage.update[0], acc + square(feature));
}

}  // namespace

Sides lower_sides(const ir::Split& split) {
  Sides sides;
  ir::LowerOptions options;
  options.type = Dtype::float64;
  options.params = split.param_leaves();
  for (const ir::StageValue& value : split.stages) {
    Sides::Stage stage;
    stage.of_x = value.of_x;
    stage.update = ir::lower(value.update, options);
    stage.finish = ir::lower({value.finish}, options);
    stage.identity = numbers_of(value.identity);
    stage.is_squares = is_squares(value);
    sides.stages.push_back(std::move(stage));
  }
  auto streams = [&](const std::vector<Expr>& list, Op side, std::vector<Sides::Stream>& out) {
    for (const Expr& e : list) {
      Sides::Stream stream;
      stream.plain = e->op == side && e->slot == 0;
      if (!stream.plain) stream.program = ir::lower({e}, options);
      out.push_back(std::move(stream));
    }
  };
  streams(split.x_streams, Op::x, sides.x_streams);
  streams(split.z_streams, Op::z, sides.z_streams);
  return sides;
}

bool reads_site(const ir::Program& program, std::initializer_list<ir::Site> sites) {
  for (const ir::Input& input : program.inputs)
    for (ir::Site site : sites)
      if (input.site == site) return true;
  return false;
}

bool reads_params(const Sides& sides, bool of_x) {
  const auto reads = [](const ir::Program& program) { return reads_site(program, {ir::Site::param}); };
  for (const Sides::Stage& s : sides.stages)
    if (s.of_x == of_x && (reads(s.update) || reads(s.finish))) return true;
  for (const Sides::Stream& s : of_x ? sides.x_streams : sides.z_streams)
    if (reads(s.program)) return true;
  return false;
}

}  // namespace mercer::plan
