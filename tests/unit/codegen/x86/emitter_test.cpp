// Machine code against ir::run, bit for bit: random programs of all primitives through the three skeletons. Only the
// sign and payload of a NaN are nobody's business. MERCER_TEST_PROGRAMS multiplies the number of programs.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/sanitized.h"
#include "core/system/cpu_features.h"
#include "plan/cpu/registers.h"
#include "plan/cpu/rotation.h"
#include "unit/codegen/skeleton_check.h"

namespace mercer {
namespace {

using namespace testing;  // NOLINT

/// How many programs to try of `count`: a tenth under the sanitizers, more where the environment says so.
int programs(int count) {
  if (testing_support::kSanitized) count /= 10;
  const char* text = std::getenv("MERCER_TEST_PROGRAMS");
  return text ? count * std::max(1, std::atoi(text)) : count;
}

bool can_run(Target target) {
  return ExecutableMemory::available() && (target == Target::x86_avx512 ? cpu_features().avx512 : cpu_features().avx2);
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
  for (Input optional : {Input{Site::w, 0},
                         {Site::row, 0},
                         {Site::row, 2},
                         {Site::col, 0},
                         {Site::col, 1},
                         {Site::index_i, 0},
                         {Site::index_j, 0}})
    if (random.chance(4)) shape.inputs.push_back(optional);
  source.program = random(shape);
  source.tile = plan::choose_tile(source.program, source.z_streams, target);
  if (random.chance(3)) {
    source.tile.vectors = 1 + random.below(3);
    source.tile.rows = 1 + random.below(4);
    while (source.tile.vectors * (states * source.tile.rows + source.z_streams) > info.registers - 3 &&
           source.tile.rows > 1)
      --source.tile.rows;
  }
  for (int s = 0; s < states; ++s) source.promoted.push_back(random.chance(3));
  return source;
}

/// An update whose loop over features is rotated.
plan::UpdateSource random_rotated(RandomProgram& random, Target target, Dtype type) {
  const plan::TargetInfo& info = plan::target_info(target);
  for (;;) {
    plan::UpdateSource source = random_update(random, target, type);
    source.program = without_dead_code(source.program);
    source.tile.rows = 1;
    source.tile.vectors = 1 + static_cast<int>(random.below(3));
    const int accumulators = static_cast<int>(source.promoted.size()) * source.tile.vectors;
    if (plan::rotate(source.program, source.tile.vectors, info.registers - accumulators, info)) return source;
  }
}

/// An update with an epilogue in the same kernel.
plan::UpdateSource random_fused(RandomProgram& random, Target target, Dtype type) {
  plan::UpdateSource source = random_update(random, target, type);
  source.fused = true;
  ProgramShape shape;
  shape.type = type;
  shape.outputs = 1 + random.below(2);
  shape.size = 1 + random.below(20);
  shape.masks = 3 + random.below(6);
  for (int s = 0; s < static_cast<int>(source.promoted.size()); ++s) shape.inputs.push_back({Site::accumulator, s});
  for (Input optional :
       {Input{Site::param, 0}, {Site::row, 0}, {Site::row, 3}, {Site::col, 0}, {Site::index_i, 0}, {Site::index_j, 0}})
    if (random.chance(3)) shape.inputs.push_back(optional);
  source.epilogue = random(shape);
  while (plan::fused_group(source.epilogue, source.tile, static_cast<int>(source.promoted.size()),
                           plan::target_info(target)) == 0 &&
         source.tile.rows > 1)
    source.tile.rows /= 2;
  source.plane = kTiles * source.tile.rows * source.tile.cols();
  source.row_slots = std::max(slots_of(source.program, Site::row, Site::index_i),
                              slots_of(source.epilogue, Site::row, Site::index_i));
  return source;
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
  for (Input optional : {Input{Site::param, 0},
                         {Site::param, 2},
                         {Site::row, 0},
                         {Site::row, 1},
                         {Site::col, 0},
                         {Site::col, 2},
                         {Site::index_i, 0},
                         {Site::index_j, 0}})
    if (random.chance(3)) shape.inputs.push_back(optional);
  source.program = random(shape);
  source.plane = source.tile.rows * (source.tile.cols() + static_cast<int>(random.below(2)) * source.tile.lanes);
  return source;
}

plan::FieldSource random_field(RandomProgram& random, Target target, Dtype type) {
  plan::FieldSource source;
  source.target = target;
  source.lanes = plan::target_info(target).lanes(type);
  source.vectors = 1 + random.below(4);
  source.outputs = 1 + random.below(target == Target::x86_avx512 ? 5 : 2);
  if (random.chance(2)) {
    source.holds = true;
    source.rows = 1 << random.below(target == Target::x86_avx512 ? 3 : 2);
    source.vectors = 1 + random.below(2);
    source.outputs = 1 + random.below(2);
  }
  source.n_capacity = 4 + random.below(3);
  source.pair_stride = 5 + random.below(3);
  source.row_stride = 2 + random.below(2);
  source.pair_row = random.below(9);
  source.coef_row = random.below(9);
  ProgramShape shape;
  shape.type = type;
  shape.size = 1 + random.below(random.chance(4) ? 60 : 16);
  shape.far = 2 + random.below(6);
  shape.masks = 3 + random.below(6);
  shape.inputs = {{Site::x, 0}, {Site::z, 0}};
  for (Input optional : {Input{Site::w, 0},
                         {Site::param, 0},
                         {Site::param, 1},
                         {Site::pair_value, 0},
                         {Site::pair_value, 1},
                         {Site::row, 0},
                         {Site::col, 1},
                         {Site::index_i, 0},
                         {Site::index_j, 0}})
    if (random.chance(3)) shape.inputs.push_back(optional);
  source.program = random(shape);
  return source;
}

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
    count = programs(count);
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
      if constexpr (std::is_same_v<Source, plan::UpdateSource>) {
        if (source.fused)
          source.epilogue = shrink(source.epilogue, [&](const ir::Program& smaller) {
            Source candidate = source;
            candidate.epilogue = smaller;
            return !check(candidate, seed).fault.empty();
          });
      }
      FAIL() << "program " << index << ": " << check(source, seed).fault << "\n"
             << describe(source) << source.program.to_text();
    }
    EXPECT_LE(refused * 3, count) << "refused " << refused << " of " << count;
    EXPECT_GE(specified * 2, values) << specified << " of " << values << " results are specified";
    RecordProperty("refused", static_cast<int>(refused));
    RecordProperty("values", std::to_string(values) + ", specified " + std::to_string(specified));
  }

 private:
  static std::string describe(const plan::UpdateSource& s) {
    std::string text = fmt::format("tile {} x {} vectors, streams {} {}, promoted", s.tile.rows, s.tile.vectors,
                                   s.x_streams, s.z_streams);
    for (bool p : s.promoted) text += p ? " 1" : " 0";
    return text + "\n" + (s.fused ? "epilogue: " + s.epilogue.to_text() : "");
  }
  static std::string describe(const plan::EpilogueSource& s) {
    return fmt::format("tile {} x {} vectors, plane {}\n", s.tile.rows, s.tile.vectors, s.plane);
  }
  static std::string describe(const plan::FieldSource& s) {
    return fmt::format("{} vectors, {} outputs\n", s.vectors, s.outputs);
  }
};

TEST_P(Emitter, UpdatesEqualTheReference) { fuzz(3000, random_update, check_update<float>, check_update<double>); }
TEST_P(Emitter, RotatedUpdatesEqualTheReference) {
  if (std::get<0>(GetParam()) == Target::x86_avx2)
    fuzz(2000, random_rotated, check_update<float>, check_update<double>);
}
TEST_P(Emitter, FusedUpdatesEqualTheReference) { fuzz(3000, random_fused, check_update<float>, check_update<double>); }
TEST_P(Emitter, EpiloguesEqualTheReference) {
  fuzz(3000, random_epilogue, check_epilogue<float>, check_epilogue<double>);
}
TEST_P(Emitter, FieldsEqualTheReference) { fuzz(3000, random_field, check_field<float>, check_field<double>); }

/// What the interpreter serves: sources of any shape that a target asks for.
TEST_P(Emitter, InterpretedUpdatesEqualTheReference) {
  fuzz(500, random_update, check_update<float, Way::interpreter>, check_update<double, Way::interpreter>);
}
TEST_P(Emitter, InterpretedEpiloguesEqualTheReference) {
  fuzz(500, random_epilogue, check_epilogue<float, Way::interpreter>, check_epilogue<double, Way::interpreter>);
}
TEST_P(Emitter, InterpretedFieldsEqualTheReference) {
  fuzz(500, random_field, check_field<float, Way::interpreter>, check_field<double, Way::interpreter>);
}

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
