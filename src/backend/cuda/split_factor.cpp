#include "backend/cuda/split_factor.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Columns of a panel: fewer make more panels, whose steps wait for one another; more leave more to cuSOLVER.
constexpr std::int64_t kBlock = 512;
constexpr std::int64_t kAlignment = 256, kThreads = 256;

}  // namespace

SplitCholesky::SplitCholesky(const PairJob& place, const CudaSolver& library, const SolverHandles& handles,
                             std::int64_t order)
    : place_(place), library_(library), handles_(handles), order_(order),
      update_(place, order - std::min(order, kBlock), order - std::min(order, kBlock), kBlock, true) {
  if (!update_) return;
  find_scale_ = factor_kernels(place);
  std::size_t device = 0;
  check_solver(library_.potrf_size(handles_.solver(), nullptr, kCuLower, kBlock, kCuFloat32, nullptr, order, kCuFloat32,
                                   &device, &host_bytes_),
               place_.op, "cusolverDnXpotrf_bufferSize");
  buffer_bytes_ = device;
  const auto add = [&](std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, kAlignment);
    return at;
  };
  places_.half = add(sizeof(int));
  places_.block_said = add(sizeof(int));
  places_.buffer = add(static_cast<std::int64_t>(buffer_bytes_));
  places_.update = add(update_.bytes());
}

bool SplitCholesky::is_aligned(const void* a, std::int64_t stride) {
  constexpr std::int64_t kFloats = 4;
  return stride % kFloats == 0 && reinterpret_cast<std::uintptr_t>(a) % (kFloats * sizeof(float)) == 0;
}

void SplitCholesky::factor_block(bool lower, float* a, std::int64_t stride, std::int64_t order, char* memory,
                                 void* host_memory) const {
  check_solver(library_.potrf(handles_.solver(), nullptr, lower ? kCuLower : kCuUpper, order, kCuFloat32, a, stride,
                              kCuFloat32, memory + places_.buffer, buffer_bytes_, host_memory, host_bytes_,
                              reinterpret_cast<int*>(memory + places_.block_said)),
               place_.op, "cusolverDnXpotrf");
}

void SplitCholesky::solve_panel(bool lower, float* a, std::int64_t stride, std::int64_t rest) const {
  const float one = 1;
  const int block = static_cast<int>(kBlock), others = static_cast<int>(rest), ld = static_cast<int>(stride);
  float* const panel = a + (lower ? kBlock : kBlock * stride);
  const int status = lower ? library_.trsm[0](handles_.blas(), kCuRight, kCuLower, kCuTransposed, kCuNonUnit, others,
                                              block, &one, a, ld, panel, ld)
                           : library_.trsm[0](handles_.blas(), kCuLeft, kCuUpper, kCuTransposed, kCuNonUnit, block,
                                              others, &one, a, ld, panel, ld);
  check_solver(status, place_.op, "cublasStrsm");
}

void SplitCholesky::run(bool lower, float* a, std::int64_t stride, char* memory, void* host_memory, int* said) const {
  FactorArguments arguments{};
  arguments.a = a;
  arguments.n = order_;
  arguments.stride = stride;
  arguments.lower = lower;
  arguments.half = reinterpret_cast<int*>(memory + places_.half);
  arguments.said = said;
  arguments.block_said = reinterpret_cast<const int*>(memory + places_.block_said);
  const auto step = [&](const char* name, std::int64_t blocks, std::int64_t threads) {
    launch({find_scale_.module, &find_scale_.module->function(name)}, place_, {blocks}, threads, 0, arguments);
  };
  const std::int64_t blocks = 8 * place_.hardware().multiprocessors;
  step("find_scale", 1, kThreads);
  step("scale_triangle", blocks, kThreads);
  for (std::int64_t j = 0; j < order_; j += kBlock) {
    float* const corner = a + j * (stride + 1);
    const std::int64_t block = std::min(kBlock, order_ - j), rest = order_ - j - block;
    factor_block(lower, corner, stride, block, memory, host_memory);
    arguments.first = j;
    step("join_info", 1, 1);
    if (rest == 0) break;
    solve_panel(lower, corner, stride, rest);
    const UpdateSide panel{corner + (lower ? kBlock : kBlock * stride), rest, lower ? 1 : stride, lower ? stride : 1};
    // A column of the matrix is a row of memory.
    update_.run(panel, panel, kBlock, {corner + kBlock * (stride + 1), stride, !lower}, memory + places_.update);
  }
  arguments.undoes = 1;
  step("scale_triangle", blocks, kThreads);
}

}  // namespace mercer::cuda
