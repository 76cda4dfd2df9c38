// Tiles that tuning may choose from: they fit, they keep every bit, the plan's own is the first.
#include "plan/gpu/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "ir/passes/passes.h"
#include "mercer/formula.h"

namespace mercer::plan {
namespace {

struct Row {
  const char* text;
  Dtype type = Dtype::float32;
  std::int64_t m = 30000, n = 30000, k = 1024;
  Consumer consumer = Consumer::store;
  int capability = 90;
};

const Row kRows[] = {
    {"sum(abs(x-z))"},
    {"sum(abs(x-z)^1.3)"},
    {"exp(-sum(abs(x-z))/h)", Dtype::float32, 30000, 30000, 3},
    {"exp(-sum(abs(x-z))/h)", Dtype::float32, 30000, 30000, 13},
    {"sum(abs(x-z))", Dtype::float32, 200, 200, 70},
    {"sum(abs(x-z))", Dtype::float32, 30000, 20, 70},
    {"sum(abs(x-z))", Dtype::float64},
    {"sum(abs(x-z)) / max(abs(x-z))"},
    {"max(abs(x-z))", Dtype::float32, 9000, 9000, 64, Consumer::store, 86},
    {"exp(-sum(abs(x-z))/h)", Dtype::float32, 30000, 30000, 64, Consumer::product},
    {"sum(abs(x-z)^1.3)", Dtype::float32, 30000, 30000, 64, Consumer::fold},
};

std::shared_ptr<const GpuPairPlan> plan_of(const Row& row) {
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse(row.text))};
  problem.type = problem.arrays.out = row.type;
  problem.consumer = row.consumer;
  problem.params.normal_reciprocals = true;
  problem.sizes = sizes_of(row.m, row.n, row.k, 132);
  problem.device.capability = row.capability;
  if (row.capability == 86) problem.device.shared_per_block = 99 * 1024;
  return plan_gpu_pairs(problem);
}

TEST(GpuTiles, CandidatesBeginWithTheOwnAndServe) {
  for (const Row& row : kRows) {
    const auto plan = plan_of(row);
    const std::vector<GpuTile> tiles = gpu_tile_candidates(*plan);
    ASSERT_GE(tiles.size(), 4u) << row.text;
    EXPECT_LE(tiles.size(), 100u) << row.text;
    EXPECT_EQ(tiles.front(), plan->tile);
    for (const GpuTile& tile : tiles) {
      EXPECT_TRUE(gpu_tile_serves(*plan, tile)) << tile.to_text();
      EXPECT_EQ(std::count(tiles.begin(), tiles.end(), tile), 1) << tile.to_text();
      const auto other = with_tile(*plan, tile);
      EXPECT_EQ(other->tile, tile);
      EXPECT_TRUE(other->tuned());
      EXPECT_LE(other->shared_bytes(1 << 20), plan->problem.device.shared_per_block);
      for (int k : {130, 300, 1000})
        if (plan->promoted_states() > 0) EXPECT_EQ(other->chunk(k) % tile.tile_k, 0) << tile.to_text();
      EXPECT_EQ(other->wave_blocks(), plan->tile.min_blocks);
    }
  }
}

/// At most 128 features are one chain of additions, more are cut into at least two chunks of at most 256, nearly alike.
TEST(GpuTiles, LongSumsArePromoted) {
  const auto chunk = [](std::int64_t k) {
    const auto plan = plan_of({"sum(abs(x-z))", Dtype::float32, 30000, 30000, k});
    EXPECT_EQ(plan->promoted_states() > 0, k > 128) << k;
    return plan->chunk(k);
  };
  EXPECT_GE(chunk(128), 128);
  EXPECT_EQ(chunk(129), 96);
  EXPECT_EQ(chunk(256), 128);
  EXPECT_EQ(chunk(300), 160);
  EXPECT_EQ(chunk(1000), 256);
  EXPECT_EQ(chunk(1024), 256);
}

TEST(GpuTiles, FewFeaturesGoByRows) {
  const char* const laplace = "exp(-sum(abs(x-z))/h)";
  const auto by_rows = [](Row row) { return plan_of(row)->by_rows(); };
  Row row{laplace, Dtype::float32, 30000, 30000, 3, Consumer::product};
  EXPECT_TRUE(by_rows(row));
  EXPECT_NE(plan_of(row)->to_text().find("rows of pairs"), std::string::npos);
  EXPECT_FALSE(plan_of(row)->programs.first_update.code.empty());
  for (auto [features, blocks] : {std::pair{2, 4}, {3, 2}, {4, 3}}) {  // as measured
    row.k = features;
    EXPECT_EQ(plan_of(row)->tile.min_blocks, blocks) << features;
  }
  row.consumer = Consumer::fold;
  EXPECT_TRUE(by_rows(row));
  row.k = 8;
  EXPECT_TRUE(by_rows(row));
  EXPECT_EQ(plan_of(row)->tile.min_blocks, 3);
  row.k = 9;
  EXPECT_FALSE(by_rows(row));
  row.k = 5;
  row.text = "sum(abs(sqrt(abs(x)) - z) + abs(x - z))";  // two streams of x
  EXPECT_FALSE(by_rows(row));
  row.text = laplace;
  row.consumer = Consumer::store;
  EXPECT_FALSE(by_rows(row));
}

TEST(GpuTiles, FoldsKeepTheOrderOfTheirSums) {
  for (const Row& row : kRows) {
    if (row.consumer == Consumer::store) continue;
    const auto plan = plan_of(row);
    for (const GpuTile& tile : gpu_tile_candidates(*plan)) {
      EXPECT_EQ(tile.tile_m, plan->tile.tile_m);
      EXPECT_EQ(tile.tile_n, plan->tile.tile_n);
      EXPECT_EQ(tile.thread_m, plan->tile.thread_m);
      EXPECT_EQ(tile.thread_n, plan->tile.thread_n);
      EXPECT_EQ(tile.tile_k, plan->tile.tile_k);
    }
  }
}

/// The program that the skeleton gives a pair, by thread and place, as in pair_tile.cuh.
std::vector<int> programs(const GpuTile& t, int eighths, int extent) {
  std::vector<int> found(static_cast<std::size_t>(extent) * extent);
  const auto point = [](int size, int share, int thread, int i) {
    const int vector = std::min(share, 4);
    return i / vector * (size / (share / vector)) + thread * vector + i % vector;
  };
  for (int m0 = 0; m0 < extent; m0 += t.tile_m)
    for (int n0 = 0; n0 < extent; n0 += t.tile_n)
      for (int ty = 0; ty < t.tile_m / t.thread_m; ++ty)
        for (int tx = 0; tx < t.tile_n / t.thread_n; ++tx)
          for (int i = 0; i < t.thread_m; ++i)
            for (int j = 0; j < t.thread_n; ++j)
              found[static_cast<std::size_t>(m0 + point(t.tile_m, t.thread_m, ty, i)) * extent + n0 +
                    point(t.tile_n, t.thread_n, tx, j)] = (j + 3 * i) * eighths % 8 + eighths >= 8;
  return found;
}

TEST(GpuTiles, EveryPairKeepsItsProgram) {
  const auto plan = plan_of({"sum(abs(x-z)^1.3)"});
  ASSERT_GT(plan->pipes.alternative_eighths, 0);
  const std::vector<int> own = programs(plan->tile, plan->pipes.alternative_eighths, 256);
  int shapes = 0;
  for (const GpuTile& tile : gpu_tile_candidates(*plan)) {
    EXPECT_EQ(programs(tile, plan->pipes.alternative_eighths, 256), own) << tile.to_text();
    shapes += tile.tile_m != plan->tile.tile_m || tile.tile_n != plan->tile.tile_n;
  }
  EXPECT_GT(shapes, 0);
  GpuTile tile = plan->tile;
  tile.thread_m = tile.thread_n = 8;
  tile.tile_m = tile.tile_n = 128;
  tile.min_blocks = 2;
  EXPECT_FALSE(gpu_tile_serves(*plan, tile));
}

TEST(GpuTiles, WhatDoesNotServeIsRefused) {
  const auto plan = plan_of({"sum(abs(x-z))"});
  const auto refused = [&](auto change) {
    GpuTile tile = plan->tile;
    change(tile);
    EXPECT_FALSE(gpu_tile_serves(*plan, tile)) << tile.to_text();
    EXPECT_THROW(with_tile(*plan, tile), Error);
  };
  refused([](GpuTile& t) { t.tile_m = 256; });
  refused([](GpuTile& t) { t.thread_n = 16; });
  refused([](GpuTile& t) { t.tile_k = 12; });
  refused([](GpuTile& t) { t.stages = 1; });
  refused([](GpuTile& t) { t.min_blocks = 0; });
  refused([](GpuTile& t) { t.min_blocks = 16; });  // registers
  refused([](GpuTile& t) { t.tile_k = 64, t.stages = 8; });
  refused([](GpuTile& t) { t.tile_m = 32, t.thread_m = 4; });  // the copy engine wants whole panels
}

TEST(GpuTiles, ClassesDiffer) {
  std::vector<std::string> seen;
  for (const Row& row : kRows) {
    const std::string text = gpu_tile_class(*plan_of(row));
    if (row.capability == 90) EXPECT_EQ(std::count(seen.begin(), seen.end(), text), 0) << text;
    seen.push_back(text);
  }
  // Numbers among the parameters are no part of a kernel; sizes of one class share theirs.
  EXPECT_EQ(gpu_tile_class(*plan_of({"sum(abs(x-z))"})),
            gpu_tile_class(*plan_of({"sum(abs(x-z))", Dtype::float32, 9000, 8000, 512})));
}

TEST(GpuTiles, RecordsComeBack) {
  for (const Row& row : kRows)
    for (const GpuTile& tile : gpu_tile_candidates(*plan_of(row)))
      EXPECT_EQ(tile_from_record(tile_record(tile)), std::optional(tile));
  const std::string good = tile_record(GpuTile{});
  for (const std::string& bad : {std::string(), std::string("x"), good + " 1", good + "\n", " " + good,
                                 "1" + good.substr(1), good.substr(0, good.size() - 2), good.substr(0, 4),
                                 good.substr(0, good.size() - 1) + "2", "2 +" + good.substr(2)})
    EXPECT_EQ(tile_from_record(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace mercer::plan
