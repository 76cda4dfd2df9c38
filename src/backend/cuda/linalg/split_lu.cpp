#include "backend/cuda/linalg/split_lu.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/linalg/triangles.h"
#include "core/integers.h"
#include "core/system/aligned.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kAlignment = 256, kThreads = 256, kWarps = kThreads / 32;
constexpr std::int64_t kPanelThreads = 256, kMostCluster = 16;
constexpr std::int64_t kSwapThreads = 512, kSwapColumns = 16, kJoinRows = 64, kJoinColumns = 64;

/// Columns of a block: more make the products of the rest faster, and leave more to floats and to cuBLAS.
std::int64_t block_of(std::int64_t order) {
  constexpr std::int64_t kLarge = 2048, kBlock = 512, kSmallBlock = 128;
  return order < kLarge ? kSmallBlock : kBlock;
}

/// Rows of a thread, and what columns of them its registers hold.
struct PanelRow {
  int rows, width;
  const char* function;
};
constexpr PanelRow kPanels[] = {{2, 32, "panel_of_2"}, {4, 32, "panel_of_4"}, {8, 16, "panel_of_8"},
                                {16, 8, "panel_of_16"}};

const PanelRow& panel_of(std::int64_t rows, const plan::LuCosts& choice) {
  for (const PanelRow& panel : kPanels) {
    const bool fits = rows <= panel.rows * kPanelThreads * kMostCluster;
    if (choice.rows > 0 ? panel.rows == choice.rows : fits) return panel;
  }
  return kPanels[std::size(kPanels) - 1];
}

/// Rows that a cluster can hold.
constexpr std::int64_t kMostRows = 16 * kPanelThreads * kMostCluster;

}  // namespace

bool SplitLu::serves(const CudaDevice& device, std::int64_t order) { return device.major == 9 && order <= kMostRows; }

SplitLu::SplitLu(const PairJob& place, const CudaSolver& library, const SolverHandles& handles, std::int64_t order,
                 std::int64_t columns, const plan::LuCosts& choice)
    : place_(place),
      library_(library),
      handles_(handles),
      order_(order),
      columns_(columns),
      block_(std::min(order, choice.block > 0 ? choice.block : block_of(order))),
      choice_(choice) {
  if (const std::int64_t most = order - block_; most > 0) {
    update_.emplace(place, most, most, block_, false);
    for (std::int64_t rest = most; rest > 0; rest -= block_) update_->prepare(rest, rest, block_, false);
  }
  panels_ = lu_panel_kernels(place);
  steps_ = lu_step_kernels(place);
  triangles_ = triangle_kernels(place);
  lay_out();
}

void SplitLu::lay_out() {
  const auto add = [&](std::int64_t count, std::int64_t size) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(checked_product({count, size}), kAlignment);
    return at;
  };
  constexpr std::int64_t kWord = 4;
  const std::int64_t rest = order_ - block_;
  places_.state = add(1, sizeof(LuState));
  places_.most = add(order_, kWord);
  places_.least = add(order_, kWord);
  places_.from = add(kPanels[0].width, kWord);
  places_.to = add(kPanels[0].width, kWord);
  places_.order = add(order_, kWord);
  places_.block_from = add(block_, kWord);
  places_.block_to = add(block_, kWord);
  places_.permutation = add(order_, kWord);
  places_.exponents = add(block_, kWord);
  places_.l = add(checked_product({rest, block_}), kWord);
  places_.u = add(checked_product({rest, block_}), kWord);
  places_.stray_rows = add(order_, 1);
  places_.stray_columns = add(order_, 1);
  places_.update = add(update_ ? update_->bytes() : 0, 1);
  places_.given = add(checked_product({order_, columns_}), kWord);
}

bool SplitLu::is_aligned(const void* a, std::int64_t stride) {
  constexpr std::int64_t kFloats = 4;
  return stride % kFloats == 0 && reinterpret_cast<std::uintptr_t>(a) % (kFloats * sizeof(float)) == 0;
}

LuArguments SplitLu::arguments(char* memory) const {
  const auto at = [&]<class T>(T*& member, std::int64_t place) { member = reinterpret_cast<T*>(memory + place); };
  LuArguments a{};
  a.n = order_;
  at(a.state, places_.state);
  at(a.most, places_.most);
  at(a.least, places_.least);
  at(a.from, places_.from);
  at(a.to, places_.to);
  at(a.order, places_.order);
  at(a.block_from, places_.block_from);
  at(a.block_to, places_.block_to);
  at(a.permutation, places_.permutation);
  at(a.exponents, places_.exponents);
  at(a.l, places_.l);
  at(a.u, places_.u);
  at(a.stray_rows, places_.stray_rows);
  at(a.stray_columns, places_.stray_columns);
  at(a.given, places_.given);
  return a;
}

void SplitLu::step(const char* name, jit::Dim3 blocks, std::int64_t threads, const LuArguments& arguments) const {
  launch({steps_.module, &steps_.module->function(name)}, place_, blocks, threads, 0, arguments);
}

void SplitLu::scale(LuArguments& a) const {
  const auto set = [&](const void* words, unsigned value, std::int64_t count) {
    const auto at = reinterpret_cast<CuPointer>(words);
    check_cuda(cuda_driver()->set_words_async(at, value, static_cast<std::size_t>(count), place_.stream()), place_.op);
  };
  constexpr std::int64_t kColumns = 32, kRanges = 32;
  set(a.state, 0, sizeof(LuState) / sizeof(unsigned));
  set(&a.state->least, 0x7f7fffff, 1);
  set(&a.state->lowest, 0x7f7fffff, 1);
  set(a.most, 0, order_);
  set(a.least, 0xffffffff, order_);
  step("find_columns", {ceil_div(order_, kColumns), std::min(kRanges, ceil_div(order_, kWarps))}, kThreads, a);
  step("judge_columns", {ceil_div(order_, kThreads)}, kThreads, a);
  step("scale_columns", {8 * place_.hardware().multiprocessors}, kThreads, a);
  step("find_rows", {ceil_div(order_, kWarps)}, kThreads, a);
}

void SplitLu::factor_panel(const LuArguments& a, std::int64_t* pivots, int* said) const {
  const std::int64_t first = a.first + a.column, rows = order_ - first;
  const PanelRow& panel = panel_of(order_ - a.first, choice_);
  LuPanelArguments own{};
  own.a = a.a + first * (a.stride + 1);
  own.stride = a.stride;
  own.rows = rows;
  own.first = first;
  own.width = a.width;
  own.pivots = reinterpret_cast<long long*>(pivots + first);
  own.from = a.from;
  own.to = a.to;
  own.said = said;
  const auto needed = static_cast<std::uint64_t>(ceil_div(rows, panel.rows * kPanelThreads));
  // A block alone has no cluster to store into.
  constexpr std::int64_t kLeastCluster = 2;
  const auto cluster =
      std::max({static_cast<std::int64_t>(std::bit_ceil(needed)), std::int64_t{choice_.cluster}, kLeastCluster});
  void* args[] = {&own};
  panels_.module->function(panel.function)
      .launch_clusters({cluster}, {kPanelThreads}, {cluster}, 0, place_.stream(), args, Overlap::blocks);
}

/// The panel's rows in the other columns of its block, and on its right A -= L U.
void SplitLu::join_panel(const LuArguments& a) const {
  const std::int64_t others = a.block - a.width, first = a.first + a.column;
  const auto run = [&](const char* name, jit::Dim3 blocks, std::int64_t threads) {
    launch_overlapping({steps_.module, &steps_.module->function(name)}, place_, blocks, threads, a);
  };
  run("swap_panel", {ceil_div(others, std::int64_t{32}) + 1}, kThreads);
  const std::int64_t columns = a.block - a.column - a.width, rows = order_ - first - a.width;
  if (columns > 0) run("update_block", {ceil_div(rows, kJoinRows), ceil_div(columns, kJoinColumns)}, kThreads);
}

void SplitLu::factor_block(LuArguments& a, std::int64_t* pivots, int* said) const {
  const int width = panel_of(order_ - a.first, choice_).width;
  step("start_block", {ceil_div(order_, kThreads)}, kThreads, a);
  for (a.column = 0; a.column < a.block; a.column += width) {
    a.width = std::min(width, a.block - a.column);
    factor_panel(a, pivots, said);
    join_panel(a);
  }
  step("list_moves", {ceil_div(order_ - a.first, kThreads)}, kThreads, a);
  step("swap_block", {ceil_div(order_ - a.block, kSwapColumns) + 1}, kSwapThreads, a);
}

void SplitLu::update_rest(const LuArguments& a, char* memory) const {
  const std::int64_t rest = order_ - a.first - a.block;
  const int block = a.block;
  float* const corner = a.a + a.first * (a.stride + 1);
  solve_wide_triangle({corner, corner + block, a.stride, block, rest}, triangles_, {library_, handles_}, place_);
  step("find_exponents", {block}, kThreads, a);
  step("write_operands_l", {ceil_div(rest, kWarps)}, kThreads, a);
  step("write_operands_u", {ceil_div(rest, kThreads), ceil_div(block, 32)}, kThreads, a);
  step("judge_strays", {ceil_div(rest, kThreads)}, kThreads, a);
  float* const corner_of_rest = corner + block * (a.stride + 1);
  update_->run({a.l, rest, block, 1}, {a.u, rest, 1, rest}, block, corner_of_rest, a.stride, memory + places_.update);
  step("update_strays", {4 * place_.hardware().multiprocessors}, kThreads, a);
}

void SplitLu::factor(float* matrix, std::int64_t stride, std::int64_t* pivots, char* memory, int* said) const {
  LuArguments a = arguments(memory);
  a.a = matrix;
  a.stride = stride;
  check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(said), 0, 1, place_.stream()), place_.op);
  scale(a);
  for (a.first = 0; a.first < order_; a.first += a.block) {
    a.block = static_cast<int>(std::min<std::int64_t>(block_, order_ - a.first));
    factor_block(a, pivots, said);
    if (a.first + a.block == order_) break;
    update_rest(a, memory);
  }
  a.undoes = 1;
  step("scale_columns", {8 * place_.hardware().multiprocessors}, kThreads, a);
}

void SplitLu::solve(const float* matrix, std::int64_t stride, float* b, std::int64_t count, char* memory) const {
  LuArguments a = arguments(memory);
  check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(a.given), reinterpret_cast<CuPointer>(b),
                                       static_cast<std::size_t>(order_ * count) * sizeof(float), place_.stream()),
             place_.op);
  a.columns = b;
  a.count = count;
  constexpr std::int64_t kMostColumns = 1024;
  step("gather_rows", {ceil_div(order_, kThreads), std::min(count, kMostColumns)}, kThreads, a);
  if (count <= kFewRightSides) {
    const TriangleSystem system{matrix, stride, order_, b, order_, count};
    solve_triangle(system, false, triangles_, place_);
    return solve_triangle(system, true, triangles_, place_);
  }
  const float one = 1;
  const int n = static_cast<int>(order_), ld = static_cast<int>(stride), k = static_cast<int>(count);
  // cuBLAS sees the transposes: of L an upper triangle, of U a lower one.
  const auto solve = [&](int uplo, int diagonal) {
    check_solver(
        library_.trsm[0](handles_.blas(), kCuLeft, uplo, kCuTransposed, diagonal, n, k, &one, matrix, ld, b, n),
        place_.op, "cublasStrsm");
  };
  solve(kCuUpper, kCuUnit);
  solve(kCuLower, kCuNonUnit);
}

}  // namespace mercer::cuda
