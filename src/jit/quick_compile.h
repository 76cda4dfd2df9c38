// Kernels that run once before they are compiled with full care.
//
//   first call   NVRTC --Ofast-compile=mid, a third of the time ---> runs once
//                NVRTC as always, then, on a thread --------------> cache on disk, second call
//
// Both have the same results to the bit: nothing is contracted or reordered for a kernel
// (backend/cuda/runtime/kernels.h, cuda_source), so the levels differ in the order of instructions, in loops unrolled
// and values kept in registers. The text sees MERCER_QUICK: its steps are functions then (MERCER_STEP), which the
// compiler takes side by side.
#pragma once

#include <future>
#include <optional>
#include <vector>

#include "jit/cuda_compile.h"

namespace mercer::jit {

struct QuickBinary {
  CudaBinary binary;
  std::shared_future<CudaBinary> full;  ///< not valid where the binary itself is the full one
};

/// Each source, several at once: the full binary where store or cache has it, else a quick one; the full one where
/// NVRTC (before 12.9), a single thread, or MERCER_QUICK_COMPILE=0 leave no choice, where no thread can be had, or
/// where the quick one does not compile. Throws as compile_all does. A process waits at its end for what is still
/// compiled.
std::vector<QuickBinary> compile_quickly(const std::vector<CudaSource>& sources);
/// As above, for sources that were looked for before.
std::vector<QuickBinary> compile_quickly(const std::vector<CudaSource>& sources, FoundBinaries found);

/// Whether a first call may have kernels of its own here.
bool compiles_first();

struct FirstBinaries {
  std::vector<CudaBinary> first;  ///< empty where one did not compile
  std::vector<std::shared_future<CudaBinary>> full;
};
/// Compiles what a first call runs, and after it what takes its place from the second call on, in a process that
/// compiles first; nothing where no thread can be had.
std::optional<FirstBinaries> compile_first(const std::vector<CudaSource>& first, const std::vector<CudaSource>& full);

/// Waits for all that is still compiled after first calls.
void finish_compiling();

}  // namespace mercer::jit
