// One primitive over a run of lanes: what the interpreter calls, and the tables of such kernels per instruction set.
// Included by code compiled for several instruction sets: no inline functions here that a linker could share.
#pragma once

#include <cstdint>

namespace mercer::codegen {

/// Pairs and triples of primitives that one kernel computes without storing what lies between them.
enum FusedPrim : int {
  kFirstFused = 64,              // past the last ir::Prim
  kAbsDifference = kFirstFused,  // |a - b|
  kAddAbsDifference,             // c + |a - b|
  kAddSquaredDifference,         // fma(a - b, a - b, c)
  kAddSquaredMax,                // fma(t, t, c) with t = max(a, b)
  kTwoSteps,                     // fma(fma(a, b, c), b, d), two steps of Horner's scheme; c and d are uniform
  kShiftedTable,                 // table at the low four bits of a >> bits
  kAndOr,                        // (a & b) | c
  kEndFused,
};

/// out[i] = op(a[i], b[i], c[i]) for i < count. An operand that the kernel's variant calls uniform is read at a[0]
/// only. `out` may be one of the operands.
struct KernelArgs {
  void* out;
  const void* a;
  const void* b;
  const void* c;
  const void* d;      // uniform
  const void* table;  // 16 values
  std::int64_t bits;  // for shifts; 1 for a cosine
  std::int64_t count;
};
using Kernel = void (*)(const KernelArgs& args);

inline constexpr int kVariants = 8;  // bit i: operand i is uniform

/// Kernels of one instruction set; null where there is none (inputs, constants).
/// `op` is an ir::Prim or a FusedPrim; `wide` is true for float64.
using KernelTable = Kernel (*)(int op, bool wide, int variant);
Kernel baseline_kernel(int op, bool wide, int variant);
Kernel avx2_kernel(int op, bool wide, int variant);
Kernel avx512_kernel(int op, bool wide, int variant);

}  // namespace mercer::codegen
