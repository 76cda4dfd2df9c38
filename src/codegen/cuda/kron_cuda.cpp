#include "codegen/cuda/kron_cuda.h"

#include <fmt/format.h>

#include "codegen/cuda/cuda_products.h"
#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_text.h"
#include "core/integers.h"

namespace mercer::codegen {
namespace {

constexpr std::int64_t kWarp = 32, kEight = 8;

/// Whole numbers are computed without signs, so that they wrap around.
const char* kron_type(Dtype dtype) {
  return dtype == Dtype::int32 ? "u32" : dtype == Dtype::int64 ? "u64" : element_type(dtype);
}

std::string opening(Dtype type, Dtype in, Dtype out) {
  return include("common/prelude.cuh") +
         fmt::format("#define REAL {}\n#define IN {}\n#define OUT {}\n", kron_type(type), kron_type(in),
                     kron_type(out)) +
         include("kron/kron_values.cuh");
}

std::string opening(const plan::KronGpuTypes& types) {
  return opening(types.type, types.in, types.out) +
         fmt::format("#define FACTOR {}\n#define FINAL {}\n#define VECTORS_IN {}\n#define VECTORS_OUT {}\n",
                     kron_type(types.factor), int{types.final}, int{types.vectors_in}, int{types.vectors_out});
}

// ---- chains ---------------------------------------------------------------------------------------------------------
struct Digit {
  std::int64_t extent, step;
};

std::vector<Digit> joined_digits(const std::vector<Digit>& digits) {
  std::vector<Digit> joined;
  for (const Digit& digit : digits) {
    if (digit.extent == 1) continue;
    const bool follows = !joined.empty() && digit.step == joined.back().extent * joined.back().step;
    if (follows) joined.back().extent *= digit.extent;
    else joined.push_back(digit);
  }
  return joined;
}

/// Whether places of an element below `stride` and of a multiple of it add up: no digit carries.
bool places_add(const std::vector<Digit>& digits, std::int64_t stride) {
  for (const Digit& digit : joined_digits(digits)) {
    if (stride < digit.extent) return digit.extent % stride == 0;
    if (stride % digit.extent != 0) return false;
    stride /= digit.extent;
  }
  return stride == 1;
}

/// Where element e of a mixed radix lies, the fastest digit first; the slowest one is not bounded.
std::string position(const std::vector<Digit>& digits) {
  const std::vector<Digit> joined = joined_digits(digits);
  std::string text;
  std::int64_t size = 1;
  for (std::size_t i = 0; i < joined.size(); ++i) {
    std::string term = size == 1 ? "e" : fmt::format("e / {}", size);
    if (i + 1 < joined.size()) term += fmt::format(" % {}", joined[i].extent);
    text += fmt::format("{}{} * {}", i == 0 ? "" : " + ", term, joined[i].step);
    size *= joined[i].extent;
  }
  return text.empty() ? "0" : text;
}

/// The place as a number, where `position` gives text.
std::int64_t place_of(const std::vector<Digit>& digits, std::int64_t element) {
  std::int64_t place = 0;
  for (const Digit& digit : digits) {
    place += element % digit.extent * digit.step;
    element /= digit.extent;
  }
  return place;
}

std::string function(const char* head, const std::vector<Digit>& digits) {
  return fmt::format("{} {{ return {}; }}\n", head, position(digits));
}

/// Axes first .. last - 1 at the time of a phase, `neighbours` fastest.
std::vector<Digit> digits_of(const plan::KronChain& chain, std::size_t phase, std::size_t first, std::size_t last,
                             Digit neighbours) {
  std::vector<Digit> digits = {neighbours};
  for (std::size_t axis = last; axis-- > first;) digits.push_back({chain.extent(phase, axis), chain.axes[axis].step});
  return digits;
}

std::string chain_numbers(const plan::KronChain& chain) {
  const std::size_t end = chain.phases.size(), axes = chain.axes.size();
  const auto element = static_cast<std::int64_t>(size_of(chain.types.type));
  const std::int64_t operand_bytes = chain.operand_at(axes);
  const Digit neighbours = {chain.tile_r, 1};
  const std::vector<Digit> in = digits_of(chain, 0, 0, axes, neighbours);
  const std::vector<Digit> out = digits_of(chain, end, 0, axes, neighbours);
  // Where a block's elements lie in a row that it shares; the first of the next block is `rank_step` on.
  std::vector<Digit> from;
  std::int64_t size = chain.tile_r, rank_step = 0;
  if (chain.cluster == 1) from.push_back({2, 1});
  for (std::size_t axis = axes; axis-- > 0 && chain.cluster > 1; size *= chain.axes[axis].p) {
    from.push_back({chain.extent(0, axis), size});
    if (chain.shares(axis)) rank_step = chain.room(axis) * size;
  }
  const auto adds = [&](const std::vector<Digit>& digits, bool vectors) {
    const std::int64_t stride = chain.block_threads * (vectors ? 16 / element : 1);
    return int{stride % chain.tile_r == 0 && places_add(digits, stride)};  // all steps begin at the first neighbour
  };
  return fmt::format("#define CHAIN_THREADS {}\n#define CHAIN_RESIDENT {}\n#define CHAIN_AXES {}\n",
                     chain.block_threads, chain.resident, axes) +
         fmt::format("#define CHAIN_CLUSTER {}\n#define CHAIN_RANK_STEP {}\n#define CHAIN_FETCHES {}\n", chain.cluster,
                     rank_step, int{chain.fetches()}) +
         fmt::format("#define TILE_L {}\n#define TILE_R {}\n#define STEP_L {}\n#define TILE_VALUES {}\n", chain.tile_l,
                     chain.tile_r, chain.step_l, chain.tile_values()) +
         fmt::format("#define IN_SIZE {}\n#define OUT_SIZE {}\n#define OPERAND_BYTES {}\n",
                     chain.in() / chain.cluster, chain.out(), operand_bytes) +
         fmt::format("#define WHOLE_R {}\n#define CHAIN_DIRECT {}\n", int{chain.whole_r}, int{chain.direct()}) +
         fmt::format("#define IN_IS_VALUE {}\n#define TENSOR {}\n#define CHAIN_REFILLS {}\n",
                     int{static_cast<std::int64_t>(size_of(chain.types.in)) == element},
                     int{chain.has_tensor()}, int{chain.refills()}) +
         fmt::format("#define CHAIN_ALTERNATES {}\n", int{chain.alternates()}) +
         fmt::format("#define CHAIN_IN_ADDS {}\n#define CHAIN_OUT_ADDS {}\n",
                     adds(in, chain.types.vectors_in) * (chain.cluster == 1 || adds(from, chain.types.vectors_in)),
                     adds(out, chain.types.vectors_out)) +
         function("MERCER_INLINE int chain_from(int e)", from) +
         function("MERCER_INLINE int chain_in(int e)", in) + function("MERCER_INLINE int chain_out(int e)", out);
}

/// An axis as write_multiplied and write_fragments want it: its element is a product of those of its factors. `raw`:
/// where they lie in shared memory on their way.
std::string chain_axis(const plan::KronChain& chain, std::size_t index, std::int64_t raw) {
  const plan::KronChainAxis& axis = chain.axes[index];
  const plan::KronChainPhase& phase = chain.phase_of(index);
  const bool left = phase.axis == static_cast<int>(index), feeds = left && phase.axes == 2;
  const std::int64_t rows = ceil_div(axis.p, 16), columns = ceil_div(axis.q, 16);
  int most = 14;  // the exponent of the largest scaled element: sums must not leave the range of 16 bits
  for (std::int64_t p = 1; feeds && (p == 1 || p < axis.p); p *= 2) most = p == 1 ? 8 : most - 1;
  std::string text = fmt::format("struct Axis{} {{\n", index);
  text += fmt::format("  static constexpr int INDEX = {}, P = {}, Q = {}, AT = {}, RAW = {};\n", index, axis.p, axis.q,
                      chain.operand_at(index), raw);
  text += fmt::format("  static constexpr int ALONE = {};\n", axis.count == 1 ? axis.first : -1);
  text += fmt::format("  static constexpr bool FROM_LEFT = {};\n", left);
  text += fmt::format("  static constexpr int TOP = {}, FRAGMENTS = {}, COLUMN_TILES = {};\n", most, 2 * rows * columns,
                      2 * columns);
  text += fmt::format("  MERCER_METHOD static int row_out(int g) {{ return {}; }}\n",
                      phase.tensor && phase.axes == 2 && phase.width > 1 ? "apart_row(g)" : "g");
  text += fmt::format("  MERCER_METHOD static int column_in(int tile, int n) {{ return {}; }}\n",
                      phase.along ? fmt::format("n * {} + tile", 2 * rows) : "8 * tile + n");
  text += fmt::format("  MERCER_METHOD static int column_out(int tile, int n) {{ return tile / 2 * 16 + {}; }}\n",
                      phase.along ? "n / 2 * 4 + tile % 2 * 2 + n % 2" : "n / 2 + 4 * (tile % 2 * 2 + n % 2)");
  text += "  MERCER_METHOD static Value load(const KronArguments& k, i64 item, int p, int q) {\n    return ";
  std::int64_t p = 1, q = 1;
  const int last = axis.first + axis.count - 1;
  for (int i = last; i >= axis.first; --i) {
    const plan::KronShape& factor = chain.factors[static_cast<std::size_t>(i)];
    text += fmt::format("{}chain_factor(k, {}, item, p / {} % {}, q / {} % {})", i == last ? "" : " * ", i, p, factor.p,
                        q, factor.q);
    p *= factor.p;
    q *= factor.q;
  }
  return text + ";\n  }\n};\n";
}

/// Whether 16 x 16 hold what a phase multiplies on tensor cores.
bool is_square(const plan::KronChain& chain, const plan::KronChainPhase& phase) {
  const auto extent = [&](int axis) { return chain.axes[static_cast<std::size_t>(axis)].extent(); };
  return phase.tensor && phase.axes == 2 && extent(phase.axis) <= 16 && extent(phase.axis + 1) <= 16;
}

std::string chain_phase(const plan::KronChain& chain, std::size_t index) {
  const plan::KronChainPhase& phase = chain.phases[index];
  const auto first = static_cast<std::size_t>(phase.axis), behind = first + static_cast<std::size_t>(phase.axes);
  const Digit tiles = {chain.tile_l, chain.step_l};
  std::string text = fmt::format("struct Phase{} {{\n  static constexpr bool ALONG = {};\n", index, phase.along);
  for (std::size_t axis = first; axis < behind; ++axis) {
    const plan::KronChainAxis& a = chain.axes[axis];
    const char letter = axis == first ? 'A' : 'B';
    text += fmt::format("  static constexpr int P_{0} = {1}, Q_{0} = {2}, STEP_{0} = {3}, OPERAND_{0} = {4}, "
                        "INDEX_{0} = {5};\n",
                        letter, a.p, a.q, a.step, chain.operand_at(axis), axis);
  }
  std::vector<Digit> outer = digits_of(chain, index, 0, first, {1, 0});
  outer.push_back(tiles);
  const std::vector<Digit> inner = digits_of(chain, index, behind, chain.axes.size(), {chain.tile_r, 1});
  // A lane takes WIDTH of the fastest digit that is not 1.
  std::vector<Digit> all = inner;
  for (Digit& digit : all)
    if (digit.extent > 1) {
      digit.extent /= phase.width;
      digit.step *= phase.width;
      break;
    }
  all.insert(all.end(), outer.begin(), outer.end());
  // Whether places of a warp's first item and of what follows it add up, in each block's share of the items.
  const std::int64_t items = phase.outer * phase.inner / phase.width;
  const std::int64_t blocks = chain.is_shared(index) ? chain.cluster : 1;
  const std::int64_t stride = chain.block_threads / kWarp * (phase.axes == 1 ? kEight : 1);
  const bool adds = phase.eights && items % (stride * blocks) == 0 && places_add(all, stride) &&
                    (blocks == 1 || places_add(all, items / blocks));
  text += fmt::format("  static constexpr int WIDTH = {}, OUTER = {}, INNER = {}, ITEMS = OUTER * INNER / WIDTH, "
                      "BLOCKS = {}, BEHIND_A = {};\n",
                      phase.width, phase.outer, phase.inner, blocks,
                      phase.inner * (phase.axes == 2 ? chain.axes[behind - 1].q : 1));
  if (phase.eights) text += fmt::format("  static constexpr bool ADDS = {};\n", adds);
  // How far apart the two items are that a warp multiplies together; 0 where that differs.
  const bool pairs = items % (2 * stride * blocks) == 0 && places_add(all, stride) && places_add(all, 2 * stride);
  if (is_square(chain, phase))
    text += fmt::format("  static constexpr int PAIR_STEP = {};\n", pairs ? place_of(all, stride) : 0);
  return text + function("  MERCER_METHOD static int outer(int e)", outer) +
         function("  MERCER_METHOD static int inner(int e)", inner) +
         function("  MERCER_METHOD static int place(int e)", all) + "};\n";
}

}  // namespace

std::string cuda_kron_source(const plan::KronGpuTile& tile) {
  std::string text = opening(tile.types);
  text += fmt::format("#define P {}ll\n#define Q {}ll\n", tile.p, tile.q);
  text += fmt::format("#define TILE_A {}\n#define TILE_B {}\n#define TILE_P {}\n#define TILE_Q {}\n", tile.tile_a,
                      tile.tile_b, tile.tile_p, tile.tile_q);
  text += fmt::format("#define THREAD_N {}\n#define THREAD_Q {}\n#define GROUPS_N {}\n#define GROUPS_Q {}\n",
                      tile.thread_n, tile.thread_q, tile.groups_n, tile.groups_q);
  return flattened(text + include("kron/kron_step.cuh"));
}

namespace {

/// The kernel of rows that come through a ring.
std::string ring_source(const plan::KronChain& chain) {
  std::string text = opening(chain.types) + chain_numbers(chain);
  text += fmt::format("#define RING_COLUMNS {}\n#define RING_STEP {}\n#define RING_SLOTS {}\n#define CLUSTER {}\n",
                      plan::KronChain::kRingColumns, plan::KronChain::kRingStep, chain.ring, chain.cluster);
  text += include("common/warpgroups.cuh") + include("kron/kron_ring.cuh");
  std::string operands, phases;
  for (std::size_t axis = 0; axis < chain.axes.size(); ++axis) {
    const bool is_left = chain.phase_of(axis).axes == 2 && chain.phase_of(axis).axis == static_cast<int>(axis);
    text += chain_axis(chain, axis, 0);
    operands += fmt::format("write_ring_operand<Axis{}, {}, {}>(k, item, operands); ", axis, is_left,
                            axis + 1 == chain.axes.size());
  }
  for (std::size_t i = 0; i < chain.phases.size(); ++i) {
    text += chain_phase(chain, i);
    // The blocks of a cluster multiply the second axis as it comes.
    if (i == 0 || i + 1 == chain.phases.size() || (chain.cluster > 1 && i == 1)) continue;
    phases += fmt::format("ring_{}<Phase{}>(tile, operands); ring_barrier(); ",
                          chain.phases[i].axes == 1 ? "one" : "two", i);
  }
  text += fmt::format("#define RING_OPERANDS {}\n#define RING_PHASES {}\n", operands, phases);
  text += fmt::format("typedef Phase{} RingLast;\n", chain.phases.size() - 1);
  return flattened(text + include(chain.cluster > 1 ? "kron/kron_ring_shared_run.cuh" : "kron/kron_ring_run.cuh"));
}

}  // namespace

std::string cuda_kron_source(const plan::KronChain& chain) {
  if (chain.ring > 0) return ring_source(chain);
  std::string text = opening(chain.types) + chain_numbers(chain) + include("common/split_pieces.cuh");
  text += fmt::format("#define CLUSTER {}\n", chain.cluster) + include("common/warpgroups.cuh");
  text += include("kron/kron_phases.cuh");
  if (chain.has_eights()) text += "#define DEEP_DOUBLES 0\n" + include("kron/kron_eights.cuh");
  const bool early = chain.is_early();
  std::string asks, measures, operands, phases;
  std::int64_t raw = 0;
  for (std::size_t axis = 0; axis < chain.axes.size(); ++axis) {
    text += chain_axis(chain, axis, raw);
    if (const plan::KronChainPhase& phase = chain.phase_of(axis); !phase.tensor) {
      const char* way = phase.eights ? "eights" : "multiplied";
      operands += fmt::format("write_{}<Axis{}>(k, item, operands); ", way, axis);
      continue;
    }
    asks += fmt::format("ask_for_factor<Axis{}>(k, item, raw); ", axis);
    measures += fmt::format("measure_factor<Axis{}>(raw, most); ", axis);
    operands += fmt::format("{}<Axis{}>(raw, most, {}, exponents); ", early ? "make_fragment" : "write_fragments", axis,
                            early ? "own" : "operands");
    raw += chain.axes[axis].p * chain.axes[axis].q;
  }
  measures += "__syncthreads(); ";
  if (raw > 0 && !early)
    operands = "float* const raw = (float*)tile; " + asks + "commit_copies(); wait_copies<0>(); " + measures +
               operands + "__syncthreads();";
  for (std::size_t i = 0; i < chain.phases.size(); ++i) {
    const plan::KronChainPhase& phase = chain.phases[i];
    text += chain_phase(chain, i);
    if (chain.alternates())
      text += fmt::format("#define CHAIN_PHASE_{0}(RESULTS) tensor_{1}<Phase{0}>(tile, operands, exponents, "
                          "RESULTS);\n",
                          i, phase.axes == 1 ? "one" : "two");
    const bool to_memory = chain.direct() && i + 1 == chain.phases.size();
    const char* results = !phase.tensor && phase.axes == 2 ? "" : to_memory ? ", results" : ", InTile()";
    const char* way = phase.tensor ? "tensor" : phase.eights ? "eights" : "multiply";
    const char* what = is_square(chain, phase) ? "squares" : phase.axes == 1 ? "one" : "two";
    phases += fmt::format("{}_{}<Phase{}>(tile, operands{}{}); {}", way, what, i, phase.tensor ? ", exponents" : "",
                          results,
                          to_memory ? "" : chain.is_shared(i + 1) ? "cluster_barrier(); " : "__syncthreads(); ");
  }
  text += fmt::format("#define CHAIN_EARLY {}\n#define CHAIN_OPERANDS {}\n#define CHAIN_PHASES {}\n", int{early},
                      operands, phases);
  if (early) text += fmt::format("#define CHAIN_ASKS {}\n#define CHAIN_MEASURES {}\n", asks, measures);
  return flattened(text + include("kron/kron_chain_run.cuh"));
}

std::string cuda_kron_source(const plan::KronWide& wide) {
  std::string text = opening(wide.types);
  text += fmt::format("#define PAIR {}\n#define P1 {}\n#define Q1 {}\n#define P2 {}\n#define Q2 {}\n", int{wide.pair},
                      wide.p1, wide.q1, wide.p2, wide.q2);
  text += fmt::format("#define TILE_N {}\n#define WHOLE_N {}\n#define GROUPS {}\n#define WARPGROUPS {}\n", wide.tile_n,
                      int{wide.whole_n}, wide.groups, wide.warpgroups);
  text += fmt::format("#define STRIP {}\n#define IN_WIDTH {}\n#define OUT_WIDTH {}\n",
                      plan::KronWide::kStrip, wide.in_width, wide.out_width);
  text += fmt::format("#define X_EXPONENT {}\n#define EXPONENT_1 {}\n#define EXPONENT_2 {}\n", wide.x_exponent(),
                      wide.first_exponent(), plan::KronWide::kExponent);
  text += fmt::format("#define COLUMN_SCALES {}\n", int{wide.column_scales});
  text += "#define CLUSTER 1\n";
  const auto product = [&](const char* name, std::int64_t columns, bool of_registers) {
    text += product_function({name, static_cast<int>(columns), static_cast<int>(columns / 2), "k16.f32.f16.f16",
                              of_registers, of_registers ? ", 1, 1, 0" : ", 1, 1, 0, 0"});
  };
  product("first_product", wide.tile_n, false);
  const std::int64_t outputs = round_up(wide.q2, 16), rest = outputs % plan::KronWide::kStrip;
  if (wide.pair && outputs >= plan::KronWide::kStrip) product("second_product", plan::KronWide::kStrip, true);
  if (wide.pair && rest != 0) product("second_product", rest, true);
  return flattened(text + include("kron/kron_wide.cuh"));
}

std::string cuda_kron_source(const plan::KronDouble& kernel) {
  std::string text = opening(kernel.types);
  text += fmt::format("#define P {}\n#define Q {}\n#define LAST {}\n#define HELD {}\n#define DEEP_DOUBLES {}\n",
                      kernel.p, kernel.q, int{kernel.last}, int{kernel.held}, int{kernel.deep});
  text += fmt::format("#define TILE_Q {}\n#define TILE_N {}\n#define WARPS_Q {}\n#define GROUP_WARPS {}\n",
                      kernel.tile_q, kernel.tile_n, kernel.warps_q, kernel.group_warps);
  text += fmt::format("#define GROUPS {}\n#define STAGES {}\n#define DEPTH {}\n", kernel.groups, kernel.stages,
                      kernel.depth);
  text += fmt::format("#define IN_WIDTH {}\n#define OUT_WIDTH {}\n", kernel.in_width, kernel.out_width);
  return flattened(text + include("kron/kron_double.cuh"));
}

std::string cuda_kron_finish_source(Dtype type, Dtype out) {
  return flattened(opening(type, type, out) + include("kron/kron_finish.cuh"));
}

}  // namespace mercer::codegen
