// Measured on an H200. Other generations have its numbers, those that scale by what limits them in the rows of cuda.cpp
// (plan/gpu/costs/costs_fields.h).
#include "plan/gpu/costs/costs.h"

#include <limits>
#include <map>

#include "core/system/mutex.h"
#include "plan/gpu/costs/costs_fields.h"
#include "plan/gpu/floor.h"
#include "plan/gpu/request.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

constexpr Costs kH200{
    .tensor_cores_from = 0x1p29,
    .wide_from = 0x1p24,
    .expanded_from = 0x1p29,
    // As two additions sums of absolute differences take 1.1 ms from `much` on, of which mixing saves a quarter, and
    // 70 us from `some` on. The small kernels around them cost 15 us.
    .much_mixed_work = 0x1p34,
    .more_parts = 8,
    .some_parts = 16,
    .mixed_pairs = 1000,  // quantising a value costs as much as 250 pairs with it save
    .sums_features = 64,  // a pair moves 8 bytes, 1.9 ps, where 64 features of two slots take 3.8 ps
    .candidates_from = 4096,
    .candidates_rows = 64,
    .by_warps = 0,
    .part_bytes = kPartBytes,
    .mask_strip = 4.4e6,  // 20 us
    .mask_byte = 7,  // 3e13 operations and 4.3e12 bytes a second
    .stored_call = 0.12,
    .stored_least_points = 64,  // half of a tile
    .stored_columns = 312,
    .stored = {2.2, 0.057, 2.6, 0.073, 0.023, 8},  // with sums of |x - z|
    .pieces = {2.2, 0.057, 7, 0.075, 0.0098, 64},
    .float64 = {9.5, 0.04, 6, 0.04, 0.042, 32},  // with Gauss kernels, whose sums are products of matrices
    .tensor_cores = {.least_points = 256,  // operands cost as much as 80 points of the other side by differences
                     .least_doubles = 96,  // reckoned: of 33 points, whose tiles are half empty
                     // Fewer features have more pairs that cancel, and cost little by multiply-adds.
                     .pairs_features = 20,
                     .folds_features = 24,
                     .fixup_from = 0x1p35,  // a kernel more in the call, 2 us, of which a block takes an area
                     .range_features = 1024,
                     .most_ranges = 16,
                     .wide_tile = 8e-5,  // narrow tiles read more for what they multiply
                     .middle_tile = 1e-4,
                     .narrow_tile = 1.2e-4,
                     .tile_epilogue = 0.015,
                     .tile_start = 0.8,
                     .tile_join = 0.005,
                     .most_columns_of_few = 1.3,  // with 512 columns, as the next two
                     .most_columns = 1.15,
                     .most_columns_of_values = 1.18},
    // Reckoned, but for the last: 370 x 1570 x 1257 inner products take 90 us of which the tiles have 13.
    .ranges = {.from = 0x1p20,
               .most_pairs = std::int64_t{1} << 22,
               .latency = 2,
               .join = 0.7,
               .start = 4,
               .gain = 0.85,
               .products_call = 70},
    .kept = {.feature = 0.0087,
             .pass = 0.5,
             .pass_column = 0.0104,
             .store = 1.1,
             .column = 0.0098,
             .call = 0.3,
             .gain = 0.95,
             .least_rows = 1024},
    // Milliseconds of 100000 x 100000 points of 3 features by a warp's products and by those of warpgroups: of 24
    // columns 5.8 and 7.8, of 32 7.0 and 8.3, of 40 10.6 and 8.8; of 8 features and 32 columns 10.2 and 9.7. Special
    // functions want warps: 3.1 ms with four blocks, 3.4 with two.
    .expanded = {.few_features = 4, .few_columns = 32, .warp_columns = 24, .blocks_columns = 16, .blocks = 4},
    // A product takes as long as an addition, or one and a half that meet others in their banks, and half-rate
    // instructions take longer next to it. Three instructions without them save a tenth.
    .differences = {.features = 128, .busy = 0.9, .symmetric_rounds = 24, .slots = 3},
    .epilogue = {.instructions = 20, .slots = 28, .gradient_slots = 64, .row_instructions = 8},
    // Reckoned: sixteen columns from whole backwards with and without a product, fewer by multiply-adds and bytes.
    .extra = {.one = 1.8, .four = 2.5, .sixteen = 4.5, .doubles = 2, .products_columns = 4},
    .gradient = {.least_points = 256,
                 .product_features = 96,
                 .wide_field_share = 0.95,
                 .linear_rows = 256,
                 .linear_columns = 192,
                 .double_features = 128,
                 .matrix_points = 1024,
                 .thread_reads = 0.4,
                 .thread_gain = 0.9,
                 .rank_features = 160,
                 .rank_points = 256,
                 .rank_pass = 2.4,
                 .rank_stored = 12,
                 .rank_output = 0.4},
    .kron =
        {.step = {.start = 3e-6, .bytes = 0.8e12, .flops = 10e12, .multiprocessors = 132},
         .chain = {.start = 3e-6,
                   .bytes = 4.2e12,
                   .slots = 32.0 * 4 * 132 * 1.7e9,
                   .tensor = 6,
                   .tensor_elements = 8,
                   .eights = 6,
                   .doubles = 16,  // with more values than stay in registers
                   .shared_pairs = 0.65,
                   .shared_many = 0.5,
                   .shared_two = 0.45,
                   .shared_one = 0.44,
                   .shared_ring = 0.63,
                   .own_many = 0.85,
                   .own_pairs = 0.6,
                   .own_one = 0.7,
                   .short_lines = 0.85,
                   .tiny_lines = 0.6,
                   .arithmetic = 0.3},
         .wide = {.from = 33, .start = 4.5e-6, .image = 1.4e-10, .product = 1.56e-12, .bytes = 3.7e12, .tile = 2.5e-6},
         .doubles = {.start = 4.0e-6,
                     .bytes = 3.4e12,
                     .shared_bytes = 132 * 128 * 1.7e9 * 0.8,
                     .image_bytes = 80e9,
                     .stage = 0.15e-6,
                     .alone = 0.75,
                     .store = 0.8e-6,
                     .again = 0.5,
                     .overlap = 0.1,
                     .narrow_lines = 0.7,
                     .single = 0.85,
                     .three_groups = 23e12,
                     .two_groups = 22e12,
                     .one_group = 16e12}},
    .dense = {.part_bytes = 512 * kMib,
              .small_until = 128,
              .blocked_from = 4608,
              .blocked_batch_from = 4608,
              .alone_until = 5e11,
              .lu = {.from = 2048, .block = 0, .rows = 0, .cluster = 0}},
    .stream = {.memory = 0, .piece = 16 * kMib, .points = 1024, .terms = 2e10},
};

double clocks_of(const GpuInfo& gpu) { return gpu.multiprocessors * gpu.gigahertz; }

/// How many times as long a device takes.
double slower(const GpuInfo& gpu, Limit limit) {
  const GpuInfo& h200 = gpu_info(90);
  switch (limit) {
    case Limit::float_lanes: return clocks_of(h200) * h200.float_lanes / (clocks_of(gpu) * gpu.float_lanes);
    case Limit::double_lanes: return clocks_of(h200) * h200.double_lanes / (clocks_of(gpu) * gpu.double_lanes);
    case Limit::memory: return h200.bytes_per_second / gpu.bytes_per_second;
    case Limit::products: return h200.half_flops / gpu.half_flops;
    case Limit::double_products: return h200.double_flops / gpu.double_flops;
    case Limit::none: break;
  }
  return 1;
}

Costs scaled(const GpuInfo& gpu) {
  struct Scale {
    const GpuInfo& gpu;
    void operator()(const char*, double&) const {}
    void operator()(const char*, std::int64_t&) const {}
    void operator()(const char*, double& number, Limit limit) const { number *= slower(gpu, limit); }
  };
  Costs costs = kH200;
  each_cost(costs, Scale{gpu});
  return costs;
}

}  // namespace

Costs Costs::everywhere() const {
  Costs costs = *this;
  costs.tensor_cores_from = costs.wide_from = costs.expanded_from = costs.much_mixed_work = 0;
  costs.differences.features = 0;
  costs.differences.busy = costs.differences.symmetric_rounds = 0;
  costs.candidates_from = costs.stored_least_points = 0;
  costs.stored_call = 0;
  costs.ranges.from = 0;
  costs.ranges.most_pairs = std::numeric_limits<std::int64_t>::max();
  costs.ranges.gain = std::numeric_limits<double>::infinity();
  return costs;
}

const Costs& costs_of(int capability) {
  static constinit Lazy<std::map<int, Costs>> rows;
  const std::map<int, Costs>& all = rows.get([] {
    std::map<int, Costs> made;
    for (const GpuInfo& gpu : gpu_infos()) made.emplace(gpu.capability, scaled(gpu));
    return made;
  });
  return all.at(gpu_info(capability).capability);
}

}  // namespace mercer::plan
