#include "codegen/interpreter/interpreted_kernels.h"

#include <algorithm>
#include <cstring>

#include "codegen/skeleton.h"
#include "core/integers.h"

namespace mercer::codegen {
namespace {

using ir::Input;
using ir::Site;

const std::byte* at(const void* base, std::int64_t elements, std::size_t element) {
  return static_cast<const std::byte*>(base) + elements * static_cast<std::int64_t>(element);
}

std::byte* at(void* base, std::int64_t elements, std::size_t element) {
  return static_cast<std::byte*>(base) + elements * static_cast<std::int64_t>(element);
}

template <class T>
void fill(void* target, const void* value, std::int64_t count) {
  std::fill_n(static_cast<T*>(target), count, *static_cast<const T*>(value));
}

template <class T>
void add(void* target, const void* values, std::int64_t count) {
  T* t = static_cast<T*>(target);
  for (std::int64_t i = 0; i < count; ++i) t[i] += static_cast<const T*>(values)[i];
}

}  // namespace

InterpretedUpdate::InterpretedUpdate(const plan::UpdateSource& source)
    : source_(source), program_(source.program), start_(source.start), promote_(source.promote) {}

void InterpretedUpdate::operator()(const plan::UpdateArgs& args) const {
  const ir::Program& program = program_.program();
  const std::int64_t rows = source_.tile.rows;
  const std::int64_t states = static_cast<std::int64_t>(program.outputs.size());
  Row row{{}, std::vector<void*>(states),
          std::vector<std::byte>(states * source_.tile.cols() * size_of(program.type))};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k == 0 || k < args.k; k += args.chunk) run_chunk(args, r, k, row);
  if (source_.guarded) *args.doubtful = is_doubtful(args);
}

void InterpretedUpdate::run_lines(const InterpretedProgram& program, const plan::UpdateArgs& args, std::int64_t r,
                                  std::int64_t line, std::int64_t k, std::int64_t steps, Row& row) const {
  const std::vector<Input>& inputs = program.program().inputs;
  const std::size_t element = size_of(program.program().type);
  const std::int64_t rows = source_.tile.rows, cols = source_.tile.cols(), size = static_cast<std::int64_t>(element);
  const std::int64_t x_step = source_.x_streams * rows, z_step = source_.z_streams * cols;
  row.inputs.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = inputs[i];
    LaneInput& lane = row.inputs[i];
    switch (in.site) {
      case Site::x: lane = {at(args.x, line * x_step + in.slot * rows + r, element), true, x_step * size}; break;
      case Site::z: lane = {at(args.z, line * z_step + in.slot * cols, element), false, z_step * size}; break;
      case Site::w: lane = {at(args.w, k, element), true, size}; break;
      case Site::param: lane = {at(args.params, in.slot, element), true, 0}; break;
      case Site::row:
      case Site::index_i: lane = {at(args.row, point_slot(in) * rows + r, element), true, 0}; break;
      case Site::col:
      case Site::index_j: lane = {at(args.col, point_slot(in) * cols, element), false, 0}; break;
      case Site::accumulator: lane = {row.outputs[in.slot], false, 0}; break;
      default: refuse_input("update", in.site);
    }
  }
  program.run_steps(row.inputs.data(), row.outputs.data(), cols, steps);
}

/// Features k … k + chunk - 1 of one row of the tile.
void InterpretedUpdate::run_chunk(const plan::UpdateArgs& args, std::int64_t r, std::int64_t k, Row& row) const {
  const ir::Program& program = program_.program();
  const bool is_double = program.type == Dtype::float64;
  const std::size_t element = size_of(program.type);
  const std::int64_t rows = source_.tile.rows, cols = source_.tile.cols();
  const std::int64_t states = static_cast<std::int64_t>(program.outputs.size());
  const bool continues = k > 0 || source_.continues;
  auto state_at = [&](std::int64_t s) { return at(args.acc, (s * rows + r) * cols, element); };
  for (std::int64_t s = 0; s < states; ++s) {
    // A later chunk of a sum starts at zero next to the running total.
    const bool is_partial = continues && source_.promoted[s];
    row.outputs[s] = is_partial ? at(row.partial.data(), s * cols, element) : state_at(s);
    if (source_.promoted[s]) std::memset(row.outputs[s], 0, cols * element);
    else if (continues) continue;
    else if (is_double) fill<double>(row.outputs[s], at(args.identity, s, element), cols);
    else fill<float>(row.outputs[s], at(args.identity, s, element), cols);
  }
  const std::int64_t heads = has_heads() ? k / args.chunk + 1 : 0, steps = std::min(args.chunk, args.k - k);
  if (heads > 0) run_lines(start_, args, r, k + heads - 1, k, 1, row);
  if (steps > 0) run_lines(program_, args, r, k + heads, k, steps, row);
  if (!source_.promote.outputs.empty()) run_lines(promote_, args, r, 0, k, 1, row);
  for (std::int64_t s = 0; s < states && continues; ++s) {
    if (!source_.promoted[s]) continue;
    if (is_double) add<double>(state_at(s), row.outputs[s], cols);
    else add<float>(state_at(s), row.outputs[s], cols);
  }
}

bool InterpretedUpdate::is_doubtful(const plan::UpdateArgs& args) const {
  const std::int64_t rows = source_.tile.rows, cols = source_.tile.cols();
  const std::int64_t lines = args.k + (has_heads() ? ceil_div(args.k, args.chunk) : 0);
  const auto any_below = [&](auto zero) {
    using T = decltype(zero);
    const T* sums = static_cast<const T*>(args.acc);
    const T* x_bound = static_cast<const T*>(args.x) + lines * source_.x_streams * rows;
    const T* z_bound = static_cast<const T*>(args.z) + lines * source_.z_streams * cols;
    bool beyond = true;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) beyond = beyond && sums[r * cols + c] - z_bound[c] >= x_bound[0];
    return !beyond;
  };
  return program_.program().type == Dtype::float64 ? any_below(0.0) : any_below(0.0f);
}

InterpretedEpilogue::InterpretedEpilogue(const plan::EpilogueSource& source)
    : source_(source), program_(source.program) {}

void InterpretedEpilogue::operator()(const plan::EpilogueArgs& args) const {
  const ir::Program& program = program_.program();
  const std::size_t element = size_of(program.type);
  const std::int64_t rows = source_.tile.rows, cols = source_.tile.cols();
  std::vector<LaneInput> inputs(program.inputs.size());
  std::vector<void*> outputs(program.outputs.size());
  for (std::int64_t r = 0; r < args.rows; ++r) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Input& in = program.inputs[i];
      switch (in.site) {
        case Site::accumulator: inputs[i] = {at(args.acc, (in.slot * rows + r) * cols, element), false, 0}; break;
        case Site::row:
        case Site::index_i: inputs[i] = {at(args.row, point_slot(in) * rows + r, element), true, 0}; break;
        case Site::col:
        case Site::index_j: inputs[i] = {at(args.col, point_slot(in) * cols, element), false, 0}; break;
        case Site::param: inputs[i] = {at(args.params, in.slot, element), true, 0}; break;
        default: refuse_input("epilogue", in.site);
      }
    }
    for (std::size_t p = 0; p < outputs.size(); ++p)
      outputs[p] = at(args.out, static_cast<std::int64_t>(p) * source_.plane, element) + r * args.out_stride;
    program_.run(inputs.data(), outputs.data(), cols);
  }
}

InterpretedField::InterpretedField(const plan::FieldSource& source)
    : source_(source), program_(with_contraction(source)) {}

void InterpretedField::operator()(const plan::FieldArgs& args) const {
  const std::int64_t size = source_.rows * source_.outputs * source_.cols();
  if (source_.states == 0) std::memset(args.acc, 0, size * size_of(program_.program().type));
  for (int r = 0; r < source_.rows && args.n > 0; ++r) run_row(args, r);
}

void InterpretedField::run_row(const plan::FieldArgs& args, std::int64_t r) const {
  const ir::Program& program = program_.program();
  const std::size_t element = size_of(program.type);
  const std::int64_t cols = source_.cols(), size = static_cast<std::int64_t>(element);
  const std::int64_t row = r * source_.row_stride, pair = r * source_.pair_row, coef = r * source_.coef_row;
  std::vector<LaneInput> inputs(program.inputs.size());
  std::vector<void*> outputs(source_.results());
  for (int o = 0; o < source_.results(); ++o) outputs[o] = at(args.acc, (r * source_.results() + o) * cols, element);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = program.inputs[i];
    LaneInput& lane = inputs[i];
    switch (in.site) {
      case Site::x: lane = {at(args.x, r * cols, element), false, 0}; break;
      case Site::z: lane = {args.z, false, args.z_stride}; break;
      case Site::w: lane = {args.w, false, 0}; break;
      case Site::param: lane = {at(args.params, in.slot, element), true, 0}; break;
      case Site::row:
      case Site::index_i: lane = {at(args.row, row + point_slot(in), element), true, 0}; break;
      case Site::col:
      case Site::index_j: lane = {at(args.col, point_slot(in) * source_.n_capacity, element), true, size}; break;
      case Site::pair_value: lane = {at(args.pair, in.slot * source_.pair_stride + pair, element), true, size}; break;
      case Site::incoming: lane = {at(args.coef, coef + in.slot, element), true, source_.outputs * size}; break;
      case Site::accumulator: lane = {outputs[in.slot], false, 0}; break;
      default: refuse_input("field", in.site);
    }
  }
  program_.run_steps(inputs.data(), outputs.data(), cols, args.n);
}

}  // namespace mercer::codegen
