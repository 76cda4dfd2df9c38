// Runs a skeleton, its machine code or the interpreter, on patterns of every kind and compares each lane with ir::run.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "codegen/interpreter/interpreted_kernels.h"
#include "codegen/skeleton.h"
#include "codegen/x86/x86_emit.h"
#include "core/error.h"
#include "core/system/exec_memory.h"
#include "unit/codegen/random_program.h"

namespace mercer::testing {

using ir::Input;
using ir::Site;

/// Arrays of one run of a skeleton, filled with patterns of every kind, and a guard after each.
template <class T>
class Arena {
 public:
  explicit Arena(std::uint64_t seed) : random_(seed) { random_.set_type(dtype_of<T>()); }
  std::vector<T> array(std::size_t size) {
    std::vector<T> values(size + kGuard, T(42));
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint64_t bits = random_.number();
      std::memcpy(&values[i], &bits, sizeof(T));
    }
    return values;
  }
  static bool guarded(const std::vector<T>& values) {
    for (std::size_t i = values.size() - kGuard; i < values.size(); ++i)
      if (values[i] != T(42)) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 16;
  RandomProgram random_;
};

inline int slots_of(const ir::Program& program, Site site, Site other) {
  int slots = 2;
  for (const Input& in : program.inputs)
    if (in.site == site || in.site == other) slots = std::max(slots, codegen::point_slot(in) + 1);
  return slots;
}

/// What runs a source: machine code, or the interpreter where there is none.
enum class Way { machine_code, interpreter };

template <class Args>
using Kernel = std::function<void(const Args&)>;

/// What went wrong, or nothing; `refused` when the emitter gave the program up.
struct Outcome {
  std::string fault;
  bool refused = false;
  std::int64_t values = 0, specified = 0;

  template <class T>
  void count(const LaneValue<T>& expected) {
    ++values;
    specified += expected.known != Known::nothing;
  }
};

/// Empty when the emitter gives the program up.
template <Way WAY, class Args, class Interpreted, class Source>
Kernel<Args> kernel_of(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) {
  if (WAY == Way::interpreter)
    return [kernel = std::make_shared<Interpreted>(source)](const Args& args) { (*kernel)(args); };
  try {
    const std::vector<std::uint8_t> code = emit(source);
    return [memory = std::make_shared<ExecutableMemory>(code.data(), code.size())](const Args& args) {
      memory->template as<void(const Args*)>()(&args);
    };
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::compile) throw;
    return {};
  }
}

inline constexpr int kParams = 3, kSteps = 3;

/// Tiles that a fused kernel computes in one call, at most; its planes are this many tiles long.
inline constexpr int kTiles = 3;

/// An update, alone or with an epilogue on a run of tiles, against the programs lane by lane.
template <class T>
class UpdateCheck {
 public:
  UpdateCheck(const plan::UpdateSource& source, std::uint64_t seed)
      : source_(source), steps_(static_cast<int>(seed % (kSteps + 1))), chunk_(1 + static_cast<int>(seed / 7 % kSteps)),
        tiles_(source.fused ? 1 + static_cast<int>(seed / 3 % kTiles) : 1), arena_(seed), update_(source.program),
        epilogue_(source.epilogue) {
    x_ = arena_.array(tiles_ * x_panel());
    z_ = arena_.array(kSteps * source.z_streams * cols_);
    w_ = arena_.array(kSteps);
    params_ = arena_.array(kParams);
    identity_ = arena_.array(states_);
    row_ = arena_.array(tiles_ * row_panel());
    col_ = arena_.array(slots(Site::col, Site::index_j) * cols_);
    out_ = arena_.array(planes_ * source.plane);
    acc_ = arena_.array(states_ * rows_ * cols_);
  }

  Outcome operator()(const Kernel<plan::UpdateArgs>& kernel) {
    plan::UpdateArgs args{};
    args.x = x_.data();
    args.z = z_.data();
    args.w = w_.data();
    args.params = params_.data();
    args.row = row_.data();
    args.col = col_.data();
    args.acc = acc_.data();
    args.identity = identity_.data();
    args.k = steps_;
    args.chunk = chunk_;
    args.out = out_.data();
    args.out_stride = cols_ * static_cast<std::int64_t>(sizeof(T));
    args.tiles = tiles_ == 1 ? 0 : tiles_;
    kernel(args);
    if (!arena_.guarded(out_)) outcome_.fault = "wrote past the output";
    if (!arena_.guarded(acc_)) outcome_.fault = "wrote past the accumulators";
    for (int tile = 0; tile < tiles_; ++tile)
      for (int r = 0; r < rows_; ++r)
        for (int c = 0; c < cols_; ++c) check_pair(tile, r, c);
    return outcome_;
  }

 private:
  using Lanes = std::vector<LaneValue<T>>;

  int slots(Site site, Site other) const {
    return std::max(slots_of(source_.program, site, other), slots_of(source_.epilogue, site, other));
  }
  int x_panel() const { return steps_ * source_.x_streams * rows_; }
  int row_panel() const { return std::max(source_.row_slots, slots(Site::row, Site::index_i)) * rows_; }

  Lanes inputs(const ir::Program& program, const Lanes& state, int tile, int r, int c, int k) const {
    Lanes in;
    for (const Input& i : program.inputs) {
      switch (i.site) {
        case Site::x: in.push_back({x_[tile * x_panel() + (k * source_.x_streams + i.slot) * rows_ + r]}); break;
        case Site::z: in.push_back({z_[(k * source_.z_streams + i.slot) * cols_ + c]}); break;
        case Site::w: in.push_back({w_[k]}); break;
        case Site::param: in.push_back({params_[i.slot]}); break;
        case Site::row:
        case Site::index_i: in.push_back({row_[tile * row_panel() + codegen::point_slot(i) * rows_ + r]}); break;
        case Site::col:
        case Site::index_j: in.push_back({col_[codegen::point_slot(i) * cols_ + c]}); break;
        default: in.push_back(state[i.slot]);
      }
    }
    return in;
  }

  /// The states of a pair after all steps, promoted sums put together.
  Lanes folded(int tile, int r, int c) {
    Lanes state(states_), total(states_);
    for (int s = 0; s < states_; ++s) state[s].value = source_.promoted[s] ? T(0) : identity_[s];
    for (int k = 0; k < steps_; ++k) {
      state = update_(inputs(source_.program, state, tile, r, c, k));
      for (int s = 0; s < states_ && ((k + 1) % chunk_ == 0 || k + 1 == steps_); ++s) {
        if (!source_.promoted[s]) continue;
        if (k >= chunk_) {
          state[s].value += total[s].value;
          state[s].known = std::max(
              {state[s].known, total[s].known, std::isnan(state[s].value) ? Known::but_nan_bits : Known::all});
        }
        total[s] = state[s];
        state[s] = {};
      }
    }
    for (int s = 0; s < states_; ++s)
      if (source_.promoted[s]) state[s] = total[s];
    return state;
  }

  void check_pair(int tile, int r, int c) {
    const Lanes state = folded(tile, r, c);
    const auto compare = [&](const char* what, int index, T value, const LaneValue<T>& expected) {
      outcome_.count(expected);
      if (agree(value, expected)) return;
      outcome_.fault = fmt::format("{}{} of tile {} at row {}, column {} after {} steps in chunks of {}: {} for {}",
                                   what, index, tile, r, c, steps_, chunk_, value, expected.value);
    };
    if (!source_.fused) {
      for (int s = 0; s < states_; ++s) compare("acc", s, acc_[(s * rows_ + r) * cols_ + c], state[s]);
      return;
    }
    const Lanes expected = epilogue_(inputs(source_.epilogue, state, tile, r, c, 0));
    for (int p = 0; p < planes_; ++p)
      compare("plane ", p, out_[p * source_.plane + (tile * rows_ + r) * cols_ + c], expected[p]);
  }

  const plan::UpdateSource& source_;
  const int rows_ = source_.tile.rows, cols_ = source_.tile.cols();
  const int states_ = static_cast<int>(source_.program.outputs.size());
  const int planes_ = static_cast<int>(source_.epilogue.outputs.size());
  const int steps_, chunk_, tiles_;
  Arena<T> arena_;
  LaneReference<T> update_, epilogue_;
  std::vector<T> x_, z_, w_, params_, identity_, row_, col_, out_, acc_;
  Outcome outcome_;
};

template <class T, Way WAY = Way::machine_code>
Outcome check_update(const plan::UpdateSource& source, std::uint64_t seed) {
  const auto kernel = kernel_of<WAY, plan::UpdateArgs, codegen::InterpretedUpdate>(source, codegen::emit_update);
  Outcome refused;
  refused.refused = true;
  if (!kernel) return refused;
  return UpdateCheck<T>(source, seed)(kernel);
}

template <class T, Way WAY = Way::machine_code>
Outcome check_epilogue(const plan::EpilogueSource& source, std::uint64_t seed) {
  const auto kernel = kernel_of<WAY, plan::EpilogueArgs, codegen::InterpretedEpilogue>(source, codegen::emit_epilogue);
  Outcome outcome;
  outcome.refused = !kernel;
  if (!kernel) return outcome;
  const ir::Program& program = source.program;
  const int rows = source.tile.rows, cols = source.tile.cols(), planes = static_cast<int>(program.outputs.size());
  int states = 1;
  for (const Input& in : program.inputs)
    if (in.site == Site::accumulator) states = std::max(states, in.slot + 1);
  const int written = 1 + static_cast<int>(seed % static_cast<unsigned>(rows));
  Arena<T> arena(seed);
  const auto acc = arena.array(states * rows * cols), params = arena.array(kParams);
  const auto row = arena.array(slots_of(program, Site::row, Site::index_i) * rows);
  const auto col = arena.array(slots_of(program, Site::col, Site::index_j) * cols);
  const std::int64_t stride = source.plane / rows;
  auto out = arena.array(planes * source.plane);
  const auto before = out;
  plan::EpilogueArgs args{acc.data(),    row.data(), col.data(),
                          params.data(), out.data(), stride * static_cast<std::int64_t>(sizeof(T)),
                          written};
  kernel(args);
  LaneReference<T> reference(program);
  std::vector<bool> touched(out.size(), false);
  for (int r = 0; r < written; ++r) {
    for (int c = 0; c < cols; ++c) {
      std::vector<LaneValue<T>> in;
      for (const Input& i : program.inputs) {
        switch (i.site) {
          case Site::param: in.push_back({params[i.slot]}); break;
          case Site::row:
          case Site::index_i: in.push_back({row[codegen::point_slot(i) * rows + r]}); break;
          case Site::col:
          case Site::index_j: in.push_back({col[codegen::point_slot(i) * cols + c]}); break;
          default: in.push_back({acc[(i.slot * rows + r) * cols + c]});
        }
      }
      const auto lane = reference(in);
      for (int p = 0; p < planes; ++p) {
        const std::size_t at = static_cast<std::size_t>(p * source.plane + r * stride + c);
        touched[at] = true;
        outcome.count(lane[p]);
        if (!agree(out[at], lane[p]))
          outcome.fault = fmt::format("plane {} at row {}, column {}: {} for {}", p, r, c, out[at], lane[p].value);
      }
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!touched[i] && !agree(out[i], {before[i]})) outcome.fault = fmt::format("wrote outside of the rows, at {}", i);
  return outcome;
}

template <class T, Way WAY = Way::machine_code>
Outcome check_field(const plan::FieldSource& source, std::uint64_t seed) {
  const auto kernel = kernel_of<WAY, plan::FieldArgs, codegen::InterpretedField>(source, codegen::emit_field);
  Outcome outcome;
  outcome.refused = !kernel;
  if (!kernel) return outcome;
  const ir::Program& program = source.program;
  const int cols = source.cols(), n = static_cast<int>(seed % 4);
  Arena<T> arena(seed);
  const int rows = source.rows;
  const auto x = arena.array(rows * cols), z = arena.array(n * (cols + 8)), w = arena.array(cols),
             params = arena.array(kParams);
  const auto row = arena.array(rows * source.row_stride);
  const auto col = arena.array(slots_of(program, Site::col, Site::index_j) * source.n_capacity);
  const auto pair = arena.array(2 * source.pair_stride + rows * source.pair_row),
             coef = arena.array(n * source.outputs + rows * source.coef_row);
  auto acc = arena.array(rows * source.outputs * cols);
  plan::FieldArgs args{
      x.data(),   z.data(),    w.data(),    params.data(), row.data(),
      col.data(), pair.data(), coef.data(), acc.data(),    static_cast<std::int64_t>((cols + 8) * sizeof(T)),
      n};
  kernel(args);
  if (!arena.guarded(acc)) outcome.fault = "wrote past the accumulators";
  LaneReference<T> reference(program);
  for (int at_row = 0; at_row < rows * cols; ++at_row) {
    const int r = at_row / cols, c = at_row % cols;
    std::vector<LaneValue<T>> sums(source.outputs);
    for (int at = 0; at < n; ++at) {
      std::vector<LaneValue<T>> in;
      for (const Input& i : program.inputs) {
        switch (i.site) {
          case Site::x: in.push_back({x[r * cols + c]}); break;
          case Site::z: in.push_back({z[at * (cols + 8) + c]}); break;
          case Site::w: in.push_back({w[c]}); break;
          case Site::param: in.push_back({params[i.slot]}); break;
          case Site::row:
          case Site::index_i: in.push_back({row[r * source.row_stride + codegen::point_slot(i)]}); break;
          case Site::col:
          case Site::index_j: in.push_back({col[codegen::point_slot(i) * source.n_capacity + at]}); break;
          default: in.push_back({pair[i.slot * source.pair_stride + r * source.pair_row + at]});
        }
      }
      const LaneValue<T> phi = reference(in)[0];
      for (int o = 0; o < source.outputs; ++o)
        sums[o] = {std::fma(phi.value, coef[r * source.coef_row + at * source.outputs + o], sums[o].value),
                   std::max(phi.known, sums[o].known)};
    }
    for (int o = 0; o < source.outputs; ++o) {
      outcome.count(sums[o]);
      const T value = acc[(r * source.outputs + o) * cols + c];
      if (!agree(value, sums[o]))
        outcome.fault = fmt::format("output {} at row {}, column {} of {} points: {} for {}", o, r, c, n, value,
                                    sums[o].value);
    }
  }
  return outcome;
}

}  // namespace mercer::testing
