// Runs a skeleton's machine code on patterns of every kind and compares each lane with ir::run.
#pragma once

#include <cmath>
#include <cstring>
#include <optional>

#include "codegen/interpreted_kernels.h"
#include "codegen/x86_emit.h"
#include "core/error.h"
#include "core/exec_memory.h"
#include "unit/codegen/random_program.h"

namespace mercer::testing {

using ir::Input;
using ir::Site;

/// Arrays of one run of a skeleton, filled with patterns of every kind, and a guard behind each.
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

template <class Args>
void call(const std::vector<std::uint8_t>& code, const Args& args) {
  const ExecutableMemory memory(code.data(), code.size());
  memory.as<void(const Args*)>()(&args);
}

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

template <class Source>
std::optional<std::vector<std::uint8_t>> emitted(const Source& source,
                                                 std::vector<std::uint8_t> (*emit)(const Source&)) {
  try {
    return emit(source);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::compile) throw;
    return std::nullopt;
  }
}

inline constexpr int kParams = 3, kSteps = 3;

template <class T>
Outcome check_update(const plan::UpdateSource& source, std::uint64_t seed) {
  const auto code = emitted(source, codegen::emit_update);
  Outcome outcome;
  outcome.refused = !code;
  if (!code) return outcome;
  const ir::Program& program = source.program;
  const int rows = source.tile.rows, cols = source.tile.cols(), states = static_cast<int>(program.outputs.size());
  const int row_slots =
      std::max(slots_of(program, Site::row, Site::index_i), slots_of(source.epilogue, Site::row, Site::index_i));
  const int col_slots =
      std::max(slots_of(program, Site::col, Site::index_j), slots_of(source.epilogue, Site::col, Site::index_j));
  const int planes = static_cast<int>(source.epilogue.outputs.size());
  Arena<T> arena(seed);
  const auto x = arena.array(kSteps * source.x_streams * rows), z = arena.array(kSteps * source.z_streams * cols);
  const auto w = arena.array(kSteps), params = arena.array(kParams), identity = arena.array(states);
  const auto row = arena.array(row_slots * rows), col = arena.array(col_slots * cols);
  LaneReference<T> reference(program), finish(source.epilogue);
  auto out = arena.array(planes * source.plane);
  const int steps = static_cast<int>(seed % (kSteps + 1)), chunk = 1 + static_cast<int>(seed / 7 % kSteps);
  auto acc = arena.array(states * rows * cols);
  const plan::UpdateArgs args{x.data(),   z.data(),   w.data(),   params.data(),
                              row.data(), col.data(), acc.data(), identity.data(),
                              steps,      chunk,      out.data(), cols * static_cast<std::int64_t>(sizeof(T))};
  call(*code, args);
  if (!arena.guarded(out)) outcome.fault = "wrote past the output";
  if (!arena.guarded(acc)) outcome.fault = "wrote past the accumulators";
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      std::vector<LaneValue<T>> state(states), total(states);
      for (int s = 0; s < states; ++s) state[s].value = source.promoted[s] ? T(0) : identity[s];
      for (int k = 0; k < steps; ++k) {
        std::vector<LaneValue<T>> in;
        for (const Input& i : program.inputs) {
          switch (i.site) {
            case Site::x: in.push_back({x[(k * source.x_streams + i.slot) * rows + r]}); break;
            case Site::z: in.push_back({z[(k * source.z_streams + i.slot) * cols + c]}); break;
            case Site::w: in.push_back({w[k]}); break;
            case Site::param: in.push_back({params[i.slot]}); break;
            case Site::row:
            case Site::index_i: in.push_back({row[codegen::point_slot(i) * rows + r]}); break;
            case Site::col:
            case Site::index_j: in.push_back({col[codegen::point_slot(i) * cols + c]}); break;
            default: in.push_back(state[i.slot]);
          }
        }
        state = reference(in);
        for (int s = 0; s < states && ((k + 1) % chunk == 0 || k + 1 == steps); ++s) {
          if (!source.promoted[s]) continue;
          if (k >= chunk) {
            state[s].value += total[s].value;
            state[s].known = std::max(
                {state[s].known, total[s].known, std::isnan(state[s].value) ? Known::but_nan_bits : Known::all});
          }
          total[s] = state[s];
          state[s] = {};
        }
      }
      for (int s = 0; s < states; ++s)
        if (source.promoted[s]) state[s] = total[s];
      if (source.fused) {
        std::vector<LaneValue<T>> in;
        for (const Input& i : source.epilogue.inputs) {
          switch (i.site) {
            case Site::param: in.push_back({params[i.slot]}); break;
            case Site::row:
            case Site::index_i: in.push_back({row[codegen::point_slot(i) * rows + r]}); break;
            case Site::col:
            case Site::index_j: in.push_back({col[codegen::point_slot(i) * cols + c]}); break;
            default: in.push_back(state[i.slot]);
          }
        }
        const auto expected = finish(in);
        for (int p = 0; p < planes; ++p) {
          const T value = out[p * source.plane + r * cols + c];
          outcome.count(expected[p]);
          if (!agree(value, expected[p]))
            outcome.fault = fmt::format("plane {} at row {}, column {} after {} steps in chunks of {}: {} for {}", p, r,
                                        c, steps, chunk, value, expected[p].value);
        }
        continue;
      }
      for (int s = 0; s < states; ++s) {
        const LaneValue<T> expected = state[s];
        const T value = acc[(s * rows + r) * cols + c];
        outcome.count(expected);
        if (!agree(value, expected))
          outcome.fault = fmt::format("acc{} at row {}, column {} after {} steps in chunks of {}: {} for {}", s, r, c,
                                      steps, chunk, value, expected.value);
      }
    }
  }
  return outcome;
}

template <class T>
Outcome check_epilogue(const plan::EpilogueSource& source, std::uint64_t seed) {
  const auto code = emitted(source, codegen::emit_epilogue);
  Outcome outcome;
  outcome.refused = !code;
  if (!code) return outcome;
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
  call(*code, args);
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

template <class T>
Outcome check_field(const plan::FieldSource& source, std::uint64_t seed) {
  const auto code = emitted(source, codegen::emit_field);
  Outcome outcome;
  outcome.refused = !code;
  if (!code) return outcome;
  const ir::Program& program = source.program;
  const int cols = source.cols(), n = static_cast<int>(seed % 4);
  Arena<T> arena(seed);
  const auto x = arena.array(cols), z = arena.array(n * (cols + 8)), w = arena.array(cols),
             params = arena.array(kParams);
  const auto row = arena.array(slots_of(program, Site::row, Site::index_i));
  const auto col = arena.array(slots_of(program, Site::col, Site::index_j) * source.n_capacity);
  const auto pair = arena.array(2 * source.pair_stride), coef = arena.array(n * source.outputs);
  auto acc = arena.array(source.outputs * cols);
  plan::FieldArgs args{
      x.data(),   z.data(),    w.data(),    params.data(), row.data(),
      col.data(), pair.data(), coef.data(), acc.data(),    static_cast<std::int64_t>((cols + 8) * sizeof(T)),
      n};
  call(*code, args);
  if (!arena.guarded(acc)) outcome.fault = "wrote past the accumulators";
  LaneReference<T> reference(program);
  for (int c = 0; c < cols; ++c) {
    std::vector<LaneValue<T>> sums(source.outputs);
    for (int at = 0; at < n; ++at) {
      std::vector<LaneValue<T>> in;
      for (const Input& i : program.inputs) {
        switch (i.site) {
          case Site::x: in.push_back({x[c]}); break;
          case Site::z: in.push_back({z[at * (cols + 8) + c]}); break;
          case Site::w: in.push_back({w[c]}); break;
          case Site::param: in.push_back({params[i.slot]}); break;
          case Site::row:
          case Site::index_i: in.push_back({row[codegen::point_slot(i)]}); break;
          case Site::col:
          case Site::index_j: in.push_back({col[codegen::point_slot(i) * source.n_capacity + at]}); break;
          default: in.push_back({pair[i.slot * source.pair_stride + at]});
        }
      }
      const LaneValue<T> phi = reference(in)[0];
      for (int o = 0; o < source.outputs; ++o)
        sums[o] = {std::fma(phi.value, coef[at * source.outputs + o], sums[o].value),
                   std::max(phi.known, sums[o].known)};
    }
    for (int o = 0; o < source.outputs; ++o) {
      outcome.count(sums[o]);
      if (!agree(acc[o * cols + c], sums[o]))
        outcome.fault =
            fmt::format("output {} at column {} of {} points: {} for {}", o, c, n, acc[o * cols + c], sums[o].value);
    }
  }
  return outcome;
}

}  // namespace mercer::testing
