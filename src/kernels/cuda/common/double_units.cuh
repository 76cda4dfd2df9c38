// Products of a warp in float64 on tensor cores. In lane 4 g + t, a is row g and b column g at depth t of four; d0 and
// d1 are row g, columns 2 t and 2 t + 1. Not volatile: other products may come between.
#pragma once

#include "common/prelude.cuh"

MERCER_INLINE void multiply_8x8(double& d0, double& d1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(d0), "+d"(d1)
      : "d"(a), "d"(b));
}
// 16 rows of a times 8 columns of b, 16 deep, added to d: a[2 s + h] is row g + 8 h, b[s] column g, both at depth
// 4 s + t; d[2 h + e] is row g + 8 h, column 2 t + e.
MERCER_INLINE void multiply_16x8(double& d0, double& d1, double& d2, double& d3, const double (&a)[8],
                                 const double (&b)[4]) {
#if DEEP_DOUBLES
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d0), "+d"(d1), "+d"(d2), "+d"(d3)
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
        "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    multiply_8x8(d0, d1, a[s * 2], b[s]);
    multiply_8x8(d2, d3, a[s * 2 + 1], b[s]);
  }
#endif
}
