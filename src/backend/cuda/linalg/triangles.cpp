#include "backend/cuda/linalg/triangles.h"

#include "core/integers.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

void solve_triangle(const TriangleSystem& system, bool upper, const Kernel& kernels, const PairJob& job) {
  // TRIANGLE, TRIANGLE_COLUMNS, TRIANGLE_THREADS, SUBTRACT_ROWS of four warps, SUBTRACT_THREADS.
  constexpr std::int64_t kBlock = 256, kColumns = 16, kThreads = 512, kRows = 32, kSubtractThreads = 128;
  const std::int64_t n = system.order, blocks = ceil_div(n, kBlock), chunks = ceil_div(system.count, kColumns);
  TriangleArguments t{};
  t.a = system.a;
  t.b = system.b;
  t.stride = system.stride;
  t.b_stride = system.b_stride;
  t.n = n;
  t.count = system.count;
  const auto run = [&](const char* name, jit::Dim3 grid, std::int64_t threads) {
    launch_overlapping({kernels.module, &kernels.module->function(name)}, job, grid, threads, t);
  };
  for (std::int64_t block = 0; block < blocks && chunks > 0; ++block) {
    t.first = (upper ? blocks - 1 - block : block) * kBlock;
    run(upper ? "solve_upper" : "solve_lower", {chunks}, kThreads);
    t.from = upper ? 0 : t.first + kBlock;
    t.to = upper ? t.first : n;
    if (t.from < t.to) run("subtract_solved", {ceil_div(t.to - t.from, kRows), chunks}, kSubtractThreads);
  }
}

void solve_wide_triangle(const WideSystem& system, const Kernel& kernels, const TriangleProducts& products,
                         const PairJob& job) {
  // WIDE_TRIANGLE and WIDE_THREADS of the kernel.
  constexpr std::int64_t kRows = 64, kThreads = 128;
  if (system.rows <= 0 || system.count <= 0) return;
  if (system.rows <= kRows) {
    WideTriangleArguments t{};
    t.a = system.a;
    t.b = system.b;
    t.stride = system.stride;
    t.count = system.count;
    t.rows = static_cast<int>(system.rows);
    return launch_overlapping({kernels.module, &kernels.module->function("solve_wide")}, job,
                              {ceil_div(system.count, kThreads)}, kThreads, t);
  }
  // The first half in whole triangles; its solutions leave the second one.
  const std::int64_t half = ceil_div(ceil_div(system.rows, kRows), 2) * kRows, rest = system.rows - half;
  WideSystem first = system, second = system;
  first.rows = half;
  second.rows = rest;
  second.a += half * (system.stride + 1);
  second.b += half * system.stride;
  solve_wide_triangle(first, kernels, products, job);
  const float minus = -1, one = 1;
  const int ld = static_cast<int>(system.stride), columns = static_cast<int>(system.count);
  // cuBLAS sees the transposes, and multiplies these.
  check_solver(products.library.gemm[0](products.handles.blas(), kCuPlain, kCuPlain, columns, static_cast<int>(rest),
                                        static_cast<int>(half), &minus, system.b, ld, system.a + half * system.stride,
                                        ld, &one, second.b, ld),
               job.op, "cublasSgemm");
  solve_wide_triangle(second, kernels, products, job);
}

}  // namespace mercer::cuda
