// The CPU kernels' contract: what the three skeletons compute, and the arguments they take. The x86 emitter and the
// interpreter both implement it, but for the fused kernel, which is machine code only.
//
// update   acc[s][r][c] = fold over k of program(acc, xs[k][·][r], zs[k][·][c], w[k], …)      rows x cols tile
//
//            xs: [k][x_streams][rows]          one panel of packed rows
//            zs: [k][z_streams][cols]          one panel of packed columns, cols = vectors * lanes
//            acc: [state][rows][cols]          stays in registers for `chunk` features; then promoted sums are added to
//                                              memory and start again at zero
//
//          With a `start` program, each chunk of a panel is headed by one more line, of which that program makes the
//          states that the chunk begins with; `promote` turns a chunk's states into what is added up. Both serve sums
//          of maxima (docs/design/sums_of_maxima.md), whose panels end with a line of bounds: a tile is doubtful unless
//          acc[0][r][c] - zs_bound[c] >= xs_bound[0] for all r and c.
//
//                      zs[k]  ├─ vector 0 ─┼─ vector 1 ─┼─ vector 2 ─┤
//            xs[k][0] ──────▶ │ acc 0      │ acc 1      │ acc 2      │   AVX-512, float: 8 rows x 3 vectors
//            xs[k][1] ──────▶ │ acc 3      │ acc 4      │ acc 5      │   = 24 accumulators, 3 registers of z,
//               …             │            │            │            │   5 for temporaries and constants
//
// epilogue out[p][r][c] = program_p(acc[·][r][c], row[·][r], col[·][c], …)
// fused    update, then the epilogue on the registers; a run of `tiles` panels of x, one below the other, against one
//          panel of z in one call
// field    acc[o][c]    = sum over n of coef[n][o] * program(x[c], z[n][c], w[c], pair[·][n], col[·][n], row[·], …)
//                         for one row of x; c runs over features. With states, acc[o][s][c] follows output (o, s) of
//                         the program, which reads coef[n][o] itself, and starts at what it holds
//
// Strides within a kernel are part of its source, strides between rows of the caller's memory are arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/expr/program.h"
#include "mercer/device.h"

namespace mercer::plan {

// Arguments. Pointers are to elements of the computing type; those that the program does not read may be null.

struct UpdateArgs {
  const void* x;         // [k][x_streams][rows]
  const void* z;         // [k][z_streams][cols]
  const void* w;         // [k]
  const void* params;    // [slot]
  const void* row;       // [slot][rows]
  const void* col;       // [slot][cols]
  void* acc;             // [state][rows][cols]
  const void* identity;  // [state]
  std::int64_t k;        // features
  std::int64_t chunk;    // features between two promotions of partial sums, at least 1
  std::uint32_t* doubtful;  // [tile], of guarded kernels: 0 where all sums are beyond their bounds
  // Fields of fused kernels only. Panels of x and of row follow each other in memory, and so do the tiles' rows of out;
  // acc is scratch.
  void* out;
  std::int64_t out_stride;  // bytes from one row of out to the next
  std::int64_t tiles;       // 0 counts as 1; more only where the planes of out lie so far apart
};

struct EpilogueArgs {
  const void* acc;          // [state][rows][cols]
  const void* row;          // [slot][rows]
  const void* col;          // [slot][cols]
  const void* params;       // [slot]
  void* out;
  std::int64_t out_stride;  // bytes from one row of out to the next
  std::int64_t rows;        // rows to write, at most the tile's
};

struct FieldArgs {
  const void* x;          // [rows][cols]
  const void* z;          // [n][cols]
  const void* w;          // [cols]
  const void* params;     // [slot]
  const void* row;        // [rows][slot], row_stride elements apart
  const void* col;        // [slot], n_capacity elements apart, each [n]
  const void* pair;       // [slot], pair_stride elements apart, each [rows][n], pair_row apart
  const void* coef;       // [rows][n][outputs], coef_row apart
  void* acc;              // [rows][outputs][states, if any][cols]
  std::int64_t z_stride;  // bytes from one row of z to the next
  std::int64_t n;
};

/// Slots of the row and col arrays: the caller's value, the index, then the values of stage 0.
inline constexpr int kUserSlot = 0, kIndexSlot = 1, kFirstStageSlot = 2;

/// Shape of the register tile.
struct TileShape {
  int rows = 8;
  int vectors = 3;
  int lanes = 16;
  int cols() const { return vectors * lanes; }
};

// Sources: what a kernel is compiled from.

struct UpdateSource {
  Target target = Target::interpreter;
  TileShape tile;
  int x_streams = 1, z_streams = 1;
  ir::Program program;          // outputs: the new states
  std::vector<bool> promoted;   // per state: a sum, whose chunks are added up outside the registers
  ir::Program start;            // of x and z, without constants; no outputs: chunks have no heads
  ir::Program promote;          // of accumulators and parameters, without constants; no outputs: sums as they are
  bool guarded = false;         // panels end with bounds
  bool continues = false;       // starts from what is in acc, not at the identities; neither guarded nor fused
  bool fused = false;           // the fields below are those of fused kernels
  ir::Program epilogue;         // outputs: one per plane of out
  std::int64_t plane = 0;       // elements between the planes
  int row_slots = 0;            // slots of row in a panel
};

struct EpilogueSource {
  Target target = Target::interpreter;
  TileShape tile;
  ir::Program program;     // outputs: one per plane of out
  std::int64_t plane = 0;  // elements between the planes
};

struct FieldSource {
  Target target = Target::interpreter;
  int vectors = 1, lanes = 16;  // of features
  int outputs = 1;              // o
  int rows = 1;                 // m, which share what is loaded of z
  bool holds = false;           // registers have x, and the coefficients of a point; of several rows they must
  int n_capacity = 0;           // elements between the slots of col
  int pair_stride = 0;          // elements between the slots of pair
  int row_stride = kFirstStageSlot, pair_row = 0, coef_row = 0;  // elements between two rows
  int states = 0;               // of each o, one output of the program each; 0: a sum
  ir::Program program = {};     // one output: φ; or outputs * states
  int results() const { return outputs * (states == 0 ? 1 : states); }
  int cols() const { return vectors * lanes; }
};

}  // namespace mercer::plan
