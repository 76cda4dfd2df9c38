#include "backend/cuda/linalg/split_factor.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Columns of a block: fewer make products with less to do for each value that they read; more leave more to cuBLAS.
std::int64_t block_of(std::int64_t order) {
  constexpr std::int64_t kLarge = 4096, kBlock = 1024, kSmallBlock = 128;
  return order < kLarge ? kSmallBlock : kBlock;
}

constexpr std::int64_t kAlignment = 256, kThreads = 256;
constexpr std::int64_t kWidth = 64, kRows = 64;  // of factor_square and solve_rows

}  // namespace

SplitCholesky::SplitCholesky(const PairJob& place, const CudaSolver& library, const SolverHandles& handles,
                             std::int64_t order)
    : place_(place), library_(library), handles_(handles), order_(order), block_(std::min(order, block_of(order))),
      update_(place, order - block_, order - block_, block_, true) {
  if (!update_) return;
  for (std::int64_t rest = order - block_; rest > 0; rest -= block_) update_.prepare(rest, rest, block_, true);
  find_scales_ = factor_kernels(place);
  const auto add = [&](std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, kAlignment);
    return at;
  };
  places_.halves = add(order * static_cast<std::int64_t>(sizeof(int)));
  places_.scales = add(sizeof(int));
  places_.bad = add(sizeof(int));
  places_.update = add(update_.bytes());
}

bool SplitCholesky::is_aligned(const void* a, std::int64_t stride) {
  constexpr std::int64_t kFloats = 4;
  return stride % kFloats == 0 && reinterpret_cast<std::uintptr_t>(a) % (kFloats * sizeof(float)) == 0;
}

void SplitCholesky::step(const char* name, jit::Dim3 blocks, std::int64_t threads, FactorArguments& a) const {
  launch({find_scales_.module, &find_scales_.module->function(name)}, place_, blocks, threads, 0, a);
}

void SplitCholesky::overlapping_step(const char* name, jit::Dim3 blocks, std::int64_t threads,
                                     FactorArguments& a) const {
  launch_overlapping({find_scales_.module, &find_scales_.module->function(name)}, place_, blocks, threads, a);
}

void SplitCholesky::factor_columns(FactorArguments& a, std::int64_t first, std::int64_t count) const {
  if (count <= kWidth) {
    a.first = first;
    a.block = static_cast<int>(count);
    overlapping_step("factor_square", {1}, kThreads, a);
    const std::int64_t rows = order_ - first - count;
    if (rows > 0) overlapping_step("solve_rows", {ceil_div(rows, kRows)}, 2 * kRows, a);
    return;
  }
  const std::int64_t half = round_up(ceil_div(count, std::int64_t{2}), kWidth), rest = count - half;
  factor_columns(a, first, half);
  const float minus = -1, one = 1;
  float* const below = a.a + first + half + first * a.stride;
  const auto i = [](std::int64_t value) { return static_cast<int>(value); };
  check_solver(library_.gemm[0](handles_.blas(), kCuPlain, kCuTransposed, i(order_ - first - half), i(rest), i(half),
                                &minus, below, i(a.stride), below, i(a.stride), &one, below + half * a.stride,
                                i(a.stride)),
               place_.op, "cublasSgemm");
  factor_columns(a, first + half, rest);
}

void SplitCholesky::run(float* a, std::int64_t stride, char* memory, int* said) const {
  FactorArguments arguments{};
  arguments.a = a;
  arguments.n = order_;
  arguments.stride = stride;
  arguments.halves = reinterpret_cast<int*>(memory + places_.halves);
  arguments.scales = reinterpret_cast<int*>(memory + places_.scales);
  arguments.bad = reinterpret_cast<int*>(memory + places_.bad);
  arguments.said = said;
  const std::int64_t blocks = 8 * place_.hardware().multiprocessors;
  fill_words(place_, arguments.scales, 1);
  fill_words(place_, arguments.bad, 1, 0x7fffffff);
  step("find_scales", {ceil_div(order_, kThreads)}, kThreads, arguments);
  step("scale_triangle", {blocks}, kThreads, arguments);
  for (std::int64_t j = 0; j < order_; j += block_) {
    const std::int64_t block = std::min(block_, order_ - j), rest = order_ - j - block;
    factor_columns(arguments, j, block);
    if (rest == 0) break;
    // A row of the panel is a point; a column of the rest is a row of memory.
    float* const corner = a + j * (stride + 1);
    const UpdateSide panel{corner + block_, rest, 1, stride};
    update_.run(panel, panel, block_, corner + block_ * (stride + 1), stride, memory + places_.update);
  }
  arguments.undoes = 1;
  step("scale_triangle", {blocks}, kThreads, arguments);
  step("say_info", {1}, 1, arguments);
}

}  // namespace mercer::cuda
