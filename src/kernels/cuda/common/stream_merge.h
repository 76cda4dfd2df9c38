// What joins the results of blocks of z in a call on arrays of the host (ops/gpu/streamed.h): its kernels' arguments.
#pragma once

// How a value of one more block joins the total.
enum StreamMerge {
  kStreamSum = 0,
  kStreamMax = 1,
  kStreamMin = 2,
  kStreamArgmax = 3,
  kStreamArgmin = 4,
  kStreamLogSumExp = 5
};

// Totals of numbers are doubles, so that no digit is lost between blocks.
struct StreamMergeArguments {
  const void* part;             // [count] in the computing type: of one block
  const long long* part_index;  // [count], or null
  double* total;                // [count]
  long long* total_index;       // [count], or null
  long long count;
  long long offset;             // of the block's first point of z
  int merge;
  int first;                    // there is no total yet
};

// Neighbours found so far, [rows][had], and those of one more block of larger indices, [rows][got], both in order:
// the first `kept` of both, [rows][kept].
struct StreamNearestArguments {
  const void *values, *part;
  const long long *indices, *part_index;
  void* out;
  long long* out_index;
  long long rows, had, got, kept;
  long long offset;
};

// [planes][rows][width] to an array of any strides.
struct StreamStoreArguments {
  const void* from;
  void* to;
  long long count, rows, width;
  long long plane_stride, row_stride, column_stride;
};
