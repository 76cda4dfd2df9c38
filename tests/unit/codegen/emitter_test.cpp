// Machine code against ir::run, bit for bit: random programs of all primitives through the three skeletons. Only the
// sign and payload of a NaN are nobody's business. MERCER_TEST_PROGRAMS multiplies the number of programs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "codegen/interpreted_kernels.h"
#include "unit/codegen/random_program.h"
#include "codegen/x86_emit.h"
#include "core/cpu_features.h"
#include "core/error.h"
#include "core/exec_memory.h"
#include "plan/registers.h"

namespace mercer {
namespace {

using ir::Input;
using ir::Site;
using namespace testing;  // NOLINT

/// The environment's factor on the number of random programs.
int factor() {
  const char* text = std::getenv("MERCER_TEST_PROGRAMS");
  return text ? std::max(1, std::atoi(text)) : 1;
}

bool can_run(Target target) {
  return ExecutableMemory::available() &&
         (target == Target::x86_avx512 ? cpu_features().avx512 : cpu_features().avx2);
}

/// Arrays of one run of a skeleton, filled with patterns of every kind, and a guard behind each.
template <class T>
class Arena {
 public:
  explicit Arena(std::uint64_t seed) : random_(seed) {
    random_.set_type(dtype_of<T>());
  }
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

int slots_of(const ir::Program& program, Site site, Site other) {
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
std::optional<std::vector<std::uint8_t>> emitted(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) {
  try {
    return emit(source);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::compile) throw;
    return std::nullopt;
  }
}

// --- update ---------------------------------------------------------------------------------------------------------

constexpr int kParams = 3, kSteps = 3;

template <class T>
Outcome check_update(const plan::UpdateSource& source, std::uint64_t seed) {
  const auto code = emitted(source, codegen::emit_update);
  Outcome outcome;
  outcome.refused = !code;
  if (!code) return outcome;
  const ir::Program& program = source.program;
  const int rows = source.tile.rows, cols = source.tile.cols(), states = static_cast<int>(program.outputs.size());
  const int row_slots = slots_of(program, Site::row, Site::index_i), col_slots = slots_of(program, Site::col, Site::index_j);
  Arena<T> arena(seed);
  const auto x = arena.array(kSteps * source.x_streams * rows), z = arena.array(kSteps * source.z_streams * cols);
  const auto w = arena.array(kSteps), params = arena.array(kParams), identity = arena.array(states);
  const auto row = arena.array(row_slots * rows), col = arena.array(col_slots * cols);
  LaneReference<T> reference(program);
  const int steps = static_cast<int>(seed % (kSteps + 1)), chunk = 1 + static_cast<int>(seed / 7 % kSteps);
  auto acc = arena.array(states * rows * cols);
  const plan::UpdateArgs args{x.data(),   z.data(),   w.data(),   params.data(),   row.data(),
                              col.data(), acc.data(), identity.data(), steps, chunk};
  call(*code, args);
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
          total[s] = k < chunk ? state[s] : LaneValue<T>{state[s].value + total[s].value, std::max(state[s].known, total[s].known)};
          state[s] = {};
        }
      }
      for (int s = 0; s < states; ++s) {
        const LaneValue<T> expected = source.promoted[s] ? total[s] : state[s];
        const T value = acc[(s * rows + r) * cols + c];
        outcome.count(expected);
        if (!agree(value, expected))
          outcome.fault = fmt::format("acc{} at row {}, column {} after {} steps in chunks of {}: {} for {}", s, r, c, steps,
                                      chunk, value, expected.value);
      }
    }
  }
  return outcome;
}

plan::UpdateSource random_update(RandomProgram& random, Target target, Dtype type) {
  const plan::TargetInfo& info = plan::target_info(target);
  plan::UpdateSource source;
  source.target = target;
  source.x_streams = 1 + random.below(2);
  source.z_streams = 1 + random.below(2);
  const int states = 1 + random.below(3);
  ProgramShape shape;
  shape.type = type;
  shape.outputs = states;
  shape.size = 3 + random.below(random.chance(4) ? 60 : 16);
  shape.far = 2 + random.below(6);
  shape.masks = 3 + random.below(6);
  for (int s = 0; s < source.x_streams; ++s) shape.inputs.push_back({Site::x, s});
  for (int s = 0; s < source.z_streams; ++s) shape.inputs.push_back({Site::z, s});
  for (int s = 0; s < states; ++s)
    if (!random.chance(6)) shape.inputs.push_back({Site::accumulator, s});
  for (int p = 0; p < kParams; ++p)
    if (random.chance(2)) shape.inputs.push_back({Site::param, p});
  for (Input optional : {Input{Site::w, 0}, {Site::row, 0}, {Site::row, 2}, {Site::col, 0}, {Site::col, 1}, {Site::index_i, 0}, {Site::index_j, 0}})
    if (random.chance(4)) shape.inputs.push_back(optional);
  source.program = random(shape);
  source.tile = plan::choose_tile(source.program, source.z_streams, target);
  if (random.chance(3)) {
    source.tile.vectors = 1 + random.below(3);
    source.tile.rows = 1 + random.below(4);
    while (source.tile.vectors * (states * source.tile.rows + source.z_streams) > info.registers - 3 && source.tile.rows > 1)
      --source.tile.rows;
  }
  for (int s = 0; s < states; ++s) source.promoted.push_back(random.chance(3));
  return source;
}

// --- epilogue -------------------------------------------------------------------------------------------------------

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
  plan::EpilogueArgs args{acc.data(), row.data(), col.data(), params.data(), out.data(),
                          stride * static_cast<std::int64_t>(sizeof(T)), written};
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

plan::EpilogueSource random_epilogue(RandomProgram& random, Target target, Dtype type) {
  plan::EpilogueSource source;
  source.target = target;
  source.tile = {1 + static_cast<int>(random.below(4)), 1 + static_cast<int>(random.below(4)),
                 plan::target_info(target).lanes(type)};
  ProgramShape shape;
  shape.type = type;
  shape.outputs = 1 + random.below(3);
  shape.size = 2 + random.below(random.chance(4) ? 120 : 24);
  shape.far = 2 + random.below(6);
  shape.masks = 3 + random.below(6);
  for (int s = 0; s < 1 + static_cast<int>(random.below(3)); ++s) shape.inputs.push_back({Site::accumulator, s});
  for (Input optional : {Input{Site::param, 0}, {Site::param, 2}, {Site::row, 0}, {Site::row, 1}, {Site::col, 0}, {Site::col, 2},
                         {Site::index_i, 0}, {Site::index_j, 0}})
    if (random.chance(3)) shape.inputs.push_back(optional);
  source.program = random(shape);
  source.plane = source.tile.rows * (source.tile.cols() + static_cast<int>(random.below(2)) * source.tile.lanes);
  return source;
}

// --- field ----------------------------------------------------------------------------------------------------------

template <class T>
Outcome check_field(const plan::FieldSource& source, std::uint64_t seed) {
  const auto code = emitted(source, codegen::emit_field);
  Outcome outcome;
  outcome.refused = !code;
  if (!code) return outcome;
  const ir::Program& program = source.program;
  const int cols = source.cols(), n = static_cast<int>(seed % 4);
  Arena<T> arena(seed);
  const auto x = arena.array(cols), z = arena.array(n * (cols + 8)), w = arena.array(cols), params = arena.array(kParams);
  const auto row = arena.array(slots_of(program, Site::row, Site::index_i));
  const auto col = arena.array(slots_of(program, Site::col, Site::index_j) * source.n_capacity);
  const auto pair = arena.array(2 * source.pair_stride), coef = arena.array(n * source.outputs);
  auto acc = arena.array(source.outputs * cols);
  plan::FieldArgs args{x.data(),   z.data(),    w.data(),    params.data(),
                       row.data(), col.data(),  pair.data(), coef.data(),
                       acc.data(), static_cast<std::int64_t>((cols + 8) * sizeof(T)), n};
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
        sums[o] = {std::fma(phi.value, coef[at * source.outputs + o], sums[o].value), std::max(phi.known, sums[o].known)};
    }
    for (int o = 0; o < source.outputs; ++o) {
      outcome.count(sums[o]);
      if (!agree(acc[o * cols + c], sums[o]))
        outcome.fault = fmt::format("output {} at column {} of {} points: {} for {}", o, c, n, acc[o * cols + c], sums[o].value);
    }
  }
  return outcome;
}

plan::FieldSource random_field(RandomProgram& random, Target target, Dtype type) {
  plan::FieldSource source;
  source.target = target;
  source.lanes = plan::target_info(target).lanes(type);
  source.vectors = 1 + random.below(4);
  source.outputs = 1 + random.below(target == Target::x86_avx512 ? 5 : 2);
  source.n_capacity = 4 + random.below(3);
  source.pair_stride = 5 + random.below(3);
  ProgramShape shape;
  shape.type = type;
  shape.size = 1 + random.below(random.chance(4) ? 60 : 16);
  shape.far = 2 + random.below(6);
  shape.masks = 3 + random.below(6);
  shape.inputs = {{Site::x, 0}, {Site::z, 0}};
  for (Input optional : {Input{Site::w, 0}, {Site::param, 0}, {Site::param, 1}, {Site::pair_value, 0}, {Site::pair_value, 1},
                         {Site::row, 0}, {Site::col, 1}, {Site::index_i, 0}, {Site::index_j, 0}})
    if (random.chance(3)) shape.inputs.push_back(optional);
  source.program = random(shape);
  return source;
}

// --- the suite ------------------------------------------------------------------------------------------------------

class Emitter : public ::testing::TestWithParam<std::tuple<Target, Dtype>> {
 protected:
  void SetUp() override {
    if (!can_run(std::get<0>(GetParam()))) GTEST_SKIP() << "this machine cannot run the target";
  }

  /// Checks `count` random sources; the first that fails is made small and printed.
  template <class Source>
  void fuzz(int count, Source (*make)(RandomProgram&, Target, Dtype), Outcome (*in_float)(const Source&, std::uint64_t),
            Outcome (*in_double)(const Source&, std::uint64_t)) {
    const auto [target, type] = GetParam();
    auto* check = type == Dtype::float64 ? in_double : in_float;
    std::int64_t refused = 0, values = 0, specified = 0;
    count *= factor();
    for (int index = 0; index < count; ++index) {
      const auto seed = static_cast<std::uint64_t>(index) * 2654435761u + 1;
      RandomProgram random(seed);
      Source source = make(random, target, type);
      verify(source.program);
      const Outcome outcome = check(source, seed);
      refused += outcome.refused;
      values += outcome.values;
      specified += outcome.specified;
      if (outcome.fault.empty()) continue;
      source.program = shrink(source.program, [&](const ir::Program& smaller) {
        Source candidate = source;
        candidate.program = smaller;
        return !check(candidate, seed).fault.empty();
      });
      FAIL() << "program " << index << ": " << check(source, seed).fault << "\n" << describe(source) << source.program.to_text();
    }
    EXPECT_LE(refused * 4, count) << "refused " << refused << " of " << count;
    EXPECT_GE(specified * 2, values) << specified << " of " << values << " results are specified";
    RecordProperty("refused", static_cast<int>(refused));
    RecordProperty("values", std::to_string(values) + ", specified " + std::to_string(specified));
  }

 private:
  static std::string describe(const plan::UpdateSource& s) {
    std::string text = fmt::format("tile {} x {} vectors, streams {} {}, promoted", s.tile.rows, s.tile.vectors, s.x_streams, s.z_streams);
    for (bool p : s.promoted) text += p ? " 1" : " 0";
    return text + "\n";
  }
  static std::string describe(const plan::EpilogueSource& s) {
    return fmt::format("tile {} x {} vectors, plane {}\n", s.tile.rows, s.tile.vectors, s.plane);
  }
  static std::string describe(const plan::FieldSource& s) {
    return fmt::format("{} vectors, {} outputs\n", s.vectors, s.outputs);
  }
};

TEST_P(Emitter, UpdatesEqualTheReference) { fuzz(3000, random_update, check_update<float>, check_update<double>); }
TEST_P(Emitter, EpiloguesEqualTheReference) { fuzz(3000, random_epilogue, check_epilogue<float>, check_epilogue<double>); }
TEST_P(Emitter, FieldsEqualTheReference) { fuzz(3000, random_field, check_field<float>, check_field<double>); }

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Target, Dtype>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param) == Target::x86_avx512 ? "avx512" : "avx2",
                     mercer::name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(All, Emitter,
                         ::testing::Combine(::testing::Values(Target::x86_avx512, Target::x86_avx2),
                                            ::testing::Values(Dtype::float32, Dtype::float64)),
                         name_of_case);

}  // namespace
}  // namespace mercer
