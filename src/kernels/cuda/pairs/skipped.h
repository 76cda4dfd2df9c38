// Rows of v that products skip, as the mask of their formula makes values 0 there (backend/cuda/pairs/mask_strips.h):
// arguments of the kernels of skipped.cuh.
#pragma once

#define MERCER_SKIPPED_POINTS 128  // rows of v that share a flag

struct SkippedArguments {
  const void* v;         // [n, columns]
  unsigned char* flags;  // [column][blocks] whether some number of so many rows of v is not finite
  void* out;             // [m, columns] of some rows
  long long n, columns, v_row, v_column, blocks;
  long long m, out_row, out_column;
  long long first, end;  // blocks whose rows of v the product had
};
