// One primitive over a run of lanes: what the interpreter calls, and the tables of such kernels per instruction set.
// Included by code compiled for several instruction sets: no inline functions here that a linker could share.
#pragma once

#include <cstdint>

namespace mercer::codegen {

/// out[i] = op(a[i], b[i], c[i]) for i < count. An operand that the kernel's variant calls uniform is read at a[0] only.
/// `out` may be one of the operands.
struct KernelArgs {
  void* out;
  const void* a;
  const void* b;
  const void* c;
  const void* table;  // 16 values, for table16
  std::int64_t bits;  // for shifts
  std::int64_t count;
};
using Kernel = void (*)(const KernelArgs& args);

inline constexpr int kVariants = 8;  // bit i: operand i is uniform

/// Kernels of one instruction set; null where there is none (inputs, constants).
/// `prim` is an ir::Prim or a FusedPrim; `wide` is true for float64.
using KernelTable = Kernel (*)(int prim, bool wide, int variant);
Kernel baseline_kernel(int prim, bool wide, int variant);
Kernel avx2_kernel(int prim, bool wide, int variant);
Kernel avx512_kernel(int prim, bool wide, int variant);

}  // namespace mercer::codegen
