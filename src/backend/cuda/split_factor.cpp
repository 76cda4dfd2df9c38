#include "backend/cuda/split_factor.h"

#include <algorithm>

#include "core/integers.h"
#include "kernels/cuda/arguments.h"

namespace mercer::cuda {
namespace {

/// Columns of a panel: fewer make more steps that wait for one another; more leave more to cuSOLVER and cuBLAS. Of
/// 16384 and 256, 512, 1024 columns: 30.9, 26.1, 24.5 ms.
std::int64_t block_of(std::int64_t order) {
  constexpr std::int64_t kLarge = 4096, kBlock = 1024, kSmallBlock = 128;
  return order < kLarge ? kSmallBlock : kBlock;
}

constexpr std::int64_t kAlignment = 256, kThreads = 256;
constexpr std::int64_t kPanelColumns = 64;  // of a block of check_panel

}  // namespace

SplitCholesky::SplitCholesky(const PairJob& place, const CudaSolver& library, const SolverHandles& handles,
                             std::int64_t order)
    : place_(place), library_(library), handles_(handles), order_(order), block_(std::min(order, block_of(order))),
      update_(place, order - block_, order - block_, block_, true) {
  if (!update_) return;
  for (std::int64_t rest = order - block_; rest > 0; rest -= block_) update_.prepare(rest, rest, block_, true);
  find_scales_ = factor_kernels(place);
  for (const std::int64_t width : {block_, order % block_}) {
    if (width == 0) continue;
    std::size_t device = 0, host = 0;
    check_solver(library_.potrf_size(handles_.solver(), nullptr, kCuLower, width, kCuFloat32, nullptr, order,
                                     kCuFloat32, &device, &host),
                 place_.op, "cusolverDnXpotrf_bufferSize");
    buffer_bytes_ = std::max(buffer_bytes_, device);
    host_bytes_ = std::max(host_bytes_, host);
  }
  const auto add = [&](std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, kAlignment);
    return at;
  };
  places_.halves = add(order * static_cast<std::int64_t>(sizeof(int)));
  places_.scales = add(sizeof(int));
  places_.bad = add(sizeof(int));
  places_.block_said = add(sizeof(int));
  places_.buffer = add(static_cast<std::int64_t>(buffer_bytes_));
  places_.update = add(update_.bytes());
}

bool SplitCholesky::is_aligned(const void* a, std::int64_t stride) {
  constexpr std::int64_t kFloats = 4;
  return stride % kFloats == 0 && reinterpret_cast<std::uintptr_t>(a) % (kFloats * sizeof(float)) == 0;
}

void SplitCholesky::factor_block(float* a, std::int64_t stride, std::int64_t order, char* memory,
                                 void* host_memory) const {
  check_solver(library_.potrf(handles_.solver(), nullptr, kCuLower, order, kCuFloat32, a, stride, kCuFloat32,
                              memory + places_.buffer, buffer_bytes_, host_memory, host_bytes_,
                              reinterpret_cast<int*>(memory + places_.block_said)),
               place_.op, "cusolverDnXpotrf");
}

void SplitCholesky::solve_panel(float* a, std::int64_t stride, std::int64_t rest) const {
  const float one = 1;
  const int block = static_cast<int>(block_), ld = static_cast<int>(stride);
  check_solver(library_.trsm[0](handles_.blas(), kCuRight, kCuLower, kCuTransposed, kCuNonUnit, static_cast<int>(rest),
                                block, &one, a, ld, a + block_, ld),
               place_.op, "cublasStrsm");
}

void SplitCholesky::run(float* a, std::int64_t stride, char* memory, void* host_memory, int* said) const {
  FactorArguments arguments{};
  arguments.a = a;
  arguments.n = order_;
  arguments.stride = stride;
  arguments.halves = reinterpret_cast<int*>(memory + places_.halves);
  arguments.scales = reinterpret_cast<int*>(memory + places_.scales);
  arguments.bad = reinterpret_cast<int*>(memory + places_.bad);
  arguments.said = said;
  arguments.block_said = reinterpret_cast<const int*>(memory + places_.block_said);
  const auto step = [&](const char* name, jit::Dim3 blocks, std::int64_t threads) {
    launch({find_scales_.module, &find_scales_.module->function(name)}, place_, blocks, threads, 0, arguments);
  };
  const auto set = [&](const int* word, unsigned value) {
    const auto at = reinterpret_cast<CuPointer>(word);
    check_cuda(cuda_driver()->set_words_async(at, value, 1, place_.stream()), place_.op);
  };
  const std::int64_t blocks = 8 * place_.hardware().multiprocessors;
  set(arguments.scales, 0);
  set(arguments.bad, 0x7fffffff);
  step("find_scales", {ceil_div(order_, kThreads)}, kThreads);
  step("scale_triangle", {blocks}, kThreads);
  for (std::int64_t j = 0; j < order_; j += block_) {
    float* const corner = a + j * (stride + 1);
    const std::int64_t block = std::min(block_, order_ - j), rest = order_ - j - block;
    factor_block(corner, stride, block, memory, host_memory);
    arguments.first = j;
    arguments.block = static_cast<int>(block);
    step("join_info", {1}, kThreads);
    if (rest == 0) break;
    solve_panel(corner, stride, rest);
    step("check_panel", {ceil_div(rest, kThreads), ceil_div(block_, kPanelColumns)}, kThreads);
    // A row of the panel is a point; a column of the rest is a row of memory.
    const UpdateSide panel{corner + block_, rest, 1, stride};
    update_.run(panel, panel, block_, corner + block_ * (stride + 1), stride, memory + places_.update);
  }
  arguments.undoes = 1;
  step("scale_triangle", {blocks}, kThreads);
  step("say_info", {1}, 1);
}

}  // namespace mercer::cuda
