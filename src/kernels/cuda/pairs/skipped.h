// Pairs that a call does not compute, as the mask of their formula knows their values: arguments of the kernels of
// skipped.cuh, known_folds.cuh and nearest/known_neighbours.cuh (backend/cuda/pairs/mask_strips.h).
#pragma once

#define MERCER_SKIPPED_POINTS 128  // rows of v that share a flag
#define MERCER_KNOWN_BYTES 16      // of known values that a thread writes
#define MERCER_MIRROR_SIDE 32      // pairs on a side of what a block mirrors

struct SkippedArguments {
  const void* v;         // [n, columns]
  unsigned char* flags;  // [column][blocks] whether some number of `points` rows of v is not finite
  void* out;             // [m, columns] of some rows
  long long n, points, columns, v_row, v_column, blocks;
  long long m, out_row, out_column;
  long long first, end;  // blocks whose rows of v the product had
};

struct KnownArguments {
  void* out;  // [m, n]
  long long m, n, out_row, out_column;
  double value;
};

struct MirrorArguments {
  const void* from;  // [m, n], its diagonal `ahead` elements before its first column
  void* to;          // [n, m]: the elements above the diagonal are written below it
  long long m, n, out_row, out_column, ahead;
};

// Flags of what is multiplied with the values of pairs in a gradient, null for what is not; results of some rows.
struct SkippedFieldArguments {
  const unsigned char *coef, *z;  // [outputs][blocks], [features][blocks]
  const unsigned char *rows, *x;  // of a row each: [factors][flag_rows], [features][flag_rows]
  void* out;                      // [outputs][m][features]
  long long m, flag_rows, blocks, first, end;
  long long out_output, out_row, out_feature;
  long long factors;  // of `rows`, and of `coef` where an output has all of them; 0: each output has its own
};

// Columns 0 … column - 1 of n have the value `before`, those from `end` on `after`.
struct KnownFoldArguments {
  const void* partial;  // states of the columns between them: [split][ld]
  void* out;            // [m]
  long long m, ld, splits, out_row;
  long long column, end, n;
  double before, after;
};

struct KnownNeighbourArguments {
  void* values;        // [m, count]; those of the columns between them, and the results
  long long* indices;  // [m, count], likewise, from the first of these columns on
  long long m, count, values_row, values_col, indices_row, indices_col;
  long long column, end, n;
  double before, after;
};
