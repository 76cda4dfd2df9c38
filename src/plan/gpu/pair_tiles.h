// Tiles of kernels whose pairs are added up feature by feature (kernels/cuda/pairs/pair_tile.cuh), as they were
// measured on a generation of GPUs (rows: plan/targets/cuda_tiles.cpp). A tile is part of a kernel's text, and its
// shape part of the order in which folds add up.
#pragma once

#include <array>

#include "plan/gpu/plan.h"

namespace mercer::plan {

struct PairTiles {
  GpuTile two_slots;         // issue slots of a pair and feature
  GpuTile deep;              // the same, at most 256 features: soon compiled
  GpuTile maxima;            // the same, no partial sums in shared memory
  GpuTile several_outputs;   // of a pair
  GpuTile three_slots;       // all of multiply-adds
  GpuTile more_slots;        // the loop must stay in the instruction cache
  GpuTile bytes;             // an instruction for four features
  GpuTile mixed_sixteen;     // folds on mixed pipes, of at most 16 features
  GpuTile fold_few;          // folds of few features
  GpuTile fold_rows;         // by rows, of fewer features still
  GpuTile two_units;         // instructions on the special-function unit
  GpuTile one_unit;          // such an instruction
  GpuTile few_features;      // bound by its stores
  GpuTile some_features;     // at most 32
  GpuTile sixteen_features;  // to 31: of slices of 32 much would be zeros
  GpuTile small;             // few pairs, several states, float64
  GpuTile tiny;              // very few pairs, few points on both sides
  GpuTile tall;              // few points of z
  GpuTile flat;              // few points of x
  GpuTile doubles;           // products of float64: slices of 16 features, warps of 32 x 64 or 32 x 32 pairs
  GpuTile small_doubles;     // the same, few pairs, or at most 256 features
  GpuTile double_folds;      // the same in folds of at most 256 features
  GpuTile differences;       // by tensor cores: two warpgroups of 64 x 128 pairs
  std::array<int, 5> blocks_by_rows;  // blocks of fold_rows, by the operands of a point
};
/// The row of this compute capability.
const PairTiles& pair_tiles(int capability);

}  // namespace mercer::plan
