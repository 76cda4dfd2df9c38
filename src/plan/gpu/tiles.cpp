#include "plan/gpu/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/error.h"
#include "ir/lower/fit_power.h"

namespace mercer::plan {
namespace {

constexpr int kRegisters = 65536;       // of a multiprocessor, 32 bits each
constexpr int kLargestTile = 128;       // panels are padded to it (backend/cuda/runtime/panels.cpp)
constexpr int kFewestRegisters = 128;   // a thread that has them gains nothing by more, unless it adds up many pairs
constexpr std::int64_t kStatic = 1024;  // bytes of shared memory next to the slices: barriers, the block's place

constexpr int kRecordVersion = 2;

int words_a_pair(const GpuPairPlan& plan) {
  return std::max(1, plan.states()) * (plan.problem.type == Dtype::float64 ? 2 : 1);
}

bool is_size(int value) { return value == 32 || value == 64 || value == kLargestTile; }
bool is_share(int value) { return value == 1 || value == 2 || value == 4 || value == 8 || value == 16; }
bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }

/// Which of its thread's points a point is: row_of and col_of of kernels/cuda/pairs/pair_tile.cuh, the other way round.
int place_in_thread(int point, int size, int share) {
  const int vector = std::min(share, 4), group = size / (share / vector), in_tile = point % size;
  return in_tile / group * vector + in_tile % vector;
}

bool same_places(int size, int share, int other_size, int other_share) {
  for (int point = 0; point < std::lcm(size, other_size); ++point)
    if (place_in_thread(point, size, share) != place_in_thread(point, other_size, other_share)) return false;
  return true;
}

bool same_bits(const GpuPairPlan& plan, const GpuTile& tile) {
  const GpuTile& own = plan.tile;
  const bool same_shape = tile.tile_m == own.tile_m && tile.tile_n == own.tile_n && tile.thread_m == own.thread_m &&
                          tile.thread_n == own.thread_n;
  if (plan.problem.consumer != Consumer::store) return same_shape && tile.tile_k == own.tile_k;
  return (plan.pipes.alternative_eighths == 0 && plan.pipes.mixed_sixteenths == 0) || same_shape ||
         (same_places(tile.tile_m, tile.thread_m, own.tile_m, own.thread_m) &&
          same_places(tile.tile_n, tile.thread_n, own.tile_n, own.thread_n));
}

/// What the skeleton takes for granted.
bool is_written_for(const GpuPairPlan& plan, const GpuTile& tile) {
  const GpuPairProblem& problem = plan.problem;
  if (!is_size(tile.tile_m) || !is_size(tile.tile_n) || !is_share(tile.thread_m) || !is_share(tile.thread_n))
    return false;
  if (tile.tile_n / tile.thread_n % 8 != 0 || tile.tile_m / tile.thread_m % 4 != 0) return false;
  const int exact = problem.sizes.exact_features;
  const auto is_depth = [](int k) { return is_power_of_two(k) && k >= 4 && k <= kDeepestSlice; };
  if (exact > 0 ? tile.tile_k != exact : !is_depth(tile.tile_k)) return false;
  if (tile.bulk && !can_be_bulk(plan, tile)) return false;
  return tile.stages >= 2 && tile.stages <= 8 && tile.unroll >= 1 && tile.unroll <= tile.tile_k &&
         tile.min_blocks >= 1 && tile.min_blocks <= 16;
}

int most_threads(int capability) { return capability == 80 || capability == 90 || capability == 100 ? 2048 : 1536; }

/// The accumulators fill half of a thread's registers at most.
bool fits_registers(const GpuPairPlan& plan, const GpuTile& tile) {
  const int pairs = plan.by_rows() ? tile.thread_n : tile.thread_m * tile.thread_n;
  const int accumulators = pairs * words_a_pair(plan);
  const int resident = tile.threads() * tile.min_blocks;
  return accumulators <= kAccumulatorWords && tile.threads() <= 1024 &&
         resident <= most_threads(plan.problem.device.capability) && kRegisters / resident >= 2 * accumulators;
}

/// `tried` is a copy of the plan, whose tile is lost.
bool serves(const GpuPairPlan& plan, const GpuTile& tile, GpuPairPlan& tried) {
  if (tile == plan.tile) return true;
  if (!is_written_for(plan, tile) || !same_bits(plan, tile) || !fits_registers(plan, tile)) return false;
  tried.tile = tile;
  const std::int64_t fixed_bytes =
      kStatic + (plan.pipes.alternative_eighths > 0 ? ir::power_table_bytes(kPowerBits) : 0);
  return tried.shared_bytes(1 << 20) + fixed_bytes <= plan.problem.device.shared_per_block;
}

/// A list without repeats of what serves.
class Candidates {
 public:
  explicit Candidates(const GpuPairPlan& plan) : plan_(plan), tried_(plan) { list.push_back(plan.tile); }

  void add(GpuTile tile) {
    tile.unroll = std::min(tile.unroll, tile.tile_k);
    tile.bulk = can_be_bulk(plan_, tile);
    if (std::find(list.begin(), list.end(), tile) == list.end() && serves(plan_, tile, tried_)) list.push_back(tile);
  }
  /// The tile with as many blocks as keep from few to many threads on a multiprocessor.
  void add_with_blocks(GpuTile tile) {
    const int accumulators = tile.thread_m * tile.thread_n * words_a_pair(plan_);
    for (int resident : {256, 384, 512, 768, 1024}) {
      tile.min_blocks = resident / tile.threads();
      const bool spares = kRegisters / resident > std::max(kFewestRegisters, 4 * accumulators);
      if (tile.min_blocks * tile.threads() == resident && !spares) add(tile);
    }
  }

  std::vector<GpuTile> list;

 private:
  const GpuPairPlan& plan_;
  GpuPairPlan tried_;
};

struct Shape {
  int tile_m, tile_n, thread_m, thread_n;
};
constexpr Shape kShapes[] = {
    {128, 128, 8, 8}, {64, 128, 8, 8}, {128, 64, 8, 8}, {64, 64, 8, 8},  {64, 128, 4, 8},
    {128, 64, 8, 4},  {64, 64, 4, 8},  {64, 64, 8, 4},  {64, 64, 4, 4},  {32, 64, 4, 4},
    {64, 32, 4, 4},   {32, 32, 4, 4},  {32, 128, 4, 8}, {128, 32, 8, 4},
};

/// Whether slices have to come at all.
bool reads_features(const GpuPairPlan& plan) { return !plan.sides.x_streams.empty() || !plan.sides.z_streams.empty(); }

}  // namespace

bool gpu_tile_serves(const GpuPairPlan& plan, const GpuTile& tile) {
  // It computes regions of one size again, or its ranges are of its own slices.
  if (plan.products.bilinear || plan.by_ranges()) return tile == plan.tile;
  GpuPairPlan tried = plan;
  return serves(plan, tile, tried);
}

std::vector<GpuTile> gpu_tile_candidates(const GpuPairPlan& plan) {
  if (plan.products.bilinear || plan.by_ranges()) return {plan.tile};
  Candidates candidates(plan);
  candidates.add_with_blocks(plan.tile);
  for (const Shape& shape : kShapes) {
    GpuTile tile = plan.tile;
    tile.tile_m = shape.tile_m, tile.tile_n = shape.tile_n;
    tile.thread_m = shape.thread_m, tile.thread_n = shape.thread_n;
    candidates.add_with_blocks(tile);
  }
  if (!reads_features(plan)) return candidates.list;
  for (int depth : {plan.tile.tile_k, 8, 16, 32})
    for (int stages : {2, 3, 4, 6})
      for (int unroll : {4, 8, 16}) {
        // Slices in flight: fewer than these wait for memory, more gain nothing.
        if (depth != plan.tile.tile_k && (stages * depth < 32 || stages * depth > 96)) continue;
        GpuTile tile = plan.tile;
        tile.tile_k = depth, tile.stages = stages, tile.unroll = unroll;
        candidates.add(tile);
      }
  return candidates.list;
}

std::shared_ptr<const GpuPairPlan> with_tile(const GpuPairPlan& plan, const GpuTile& tile) {
  auto made = std::make_shared<GpuPairPlan>(plan);
  if (!serves(plan, tile, *made)) fail(ErrorKind::compile, "plan: the tile must serve. Received {}.", tile.to_text());
  made->tile = tile;
  made->folding.model_blocks = plan.wave_blocks();
  if (plan.few.expanded) {
    auto expanded = std::make_shared<GpuPairPlan>(*plan.few.expanded);
    expanded->tile = tile;
    made->few.expanded = std::move(expanded);
  }
  return made;
}

std::string gpu_tile_class(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {}\n", name_of(problem.type), name_of(problem.arrays.out),
                                 static_cast<int>(problem.consumer), static_cast<int>(problem.use.fold),
                                 problem.use.columns, problem.sizes.to_text(), plan.input.bytes, plan.promoted_states(),
                                 plan.pipes.alternative_eighths, plan.pipes.mixed_sixteenths);
  text += fmt::format("{} {} {} {}\n", plan.sides.x_streams.size(), plan.sides.z_streams.size(),
                      plan.programs.row_slots, plan.programs.col_slots);
  if (plan.input.direct) text += fmt::format("direct {}\n", name_of(problem.arrays.points));
  if (plan.few.expanded) text += "expanded\n";
  for (const ir::Program* program : {&plan.programs.update, &plan.pipes.alternative, &plan.programs.epilogue})
    text += program->outputs.empty() ? "-\n" : program->to_text();
  return text;
}

std::string tile_record(const GpuTile& t) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}", kRecordVersion, t.tile_m, t.tile_n, t.tile_k, t.thread_m,
                     t.thread_n, t.stages, t.unroll, t.min_blocks, static_cast<int>(t.bulk));
}

std::optional<GpuTile> tile_from_record(std::string_view record) {
  GpuTile t;
  int version = 0, bulk = 0;
  int* const fields[] = {&version,    &t.tile_m, &t.tile_n, &t.tile_k,     &t.thread_m,
                         &t.thread_n, &t.stages, &t.unroll, &t.min_blocks, &bulk};
  const char *at = record.data(), *end = at + record.size();
  for (int* field : fields) {
    if (field != fields[0] && (at == end || *at++ != ' ')) return std::nullopt;
    const auto [stop, error] = std::from_chars(at, end, *field);
    if (error != std::errc()) return std::nullopt;
    at = stop;
  }
  t.bulk = bulk == 1;
  // Every number as it would be written: no other text means the same tile.
  if (version != kRecordVersion || record != tile_record(t)) return std::nullopt;
  return t;
}

}  // namespace mercer::plan
