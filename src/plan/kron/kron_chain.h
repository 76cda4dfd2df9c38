// Several neighbouring factors of a Kronecker product in one pass over memory on a GPU: a tile lies in shared memory
// while one factor after the other is multiplied (kernels/cuda/kron/kron_chain.cuh).
//
//   tile [tile_l][axis 0] ... [axis n-1][tile_r]     tile_r neighbours after the factors, or tile_l tiles side by side
//   an axis is one factor, or several tiny ones multiplied out; it has room for p and for q
//   on 9.0 a row may be shared by a cluster: a block has some elements of an axis, whose phase is last and reads all
//   a phase multiplies one axis or two neighbouring ones, in place: what a thread or warp replaces, it has read itself
//   on 9.0 a row of axes of five to eight that is alone on its multiprocessor comes through a ring (kron_ring.cuh):
//   a slot has some columns of the first axis, which is multiplied on its way into the tile
//   rows of six axes of eight come through the rings of a cluster: each block keeps one element of the first axis
//
// Floor: bytes of the pass at 4.2 TB/s. Issue slots an element of float32: p for each axis in multiply-adds, or 4 to 6
// an axis of at most 16 on tensor cores (two splits, three products of 16 bits), and a load and a store a phase.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/kron/kron.h"
#include "plan/kron/kron_gpu_types.h"

namespace mercer::plan {

struct KronChainCosts;

struct KronChainAxis {
  int first = 0, count = 1;       // factors of the pass that are multiplied out
  std::int64_t p = 1, q = 1;
  std::int64_t step = 1;          // of neighbours in the tile, in values
  std::int64_t extent() const { return p > q ? p : q; }
};

struct KronChainPhase {
  int axis = 0, axes = 1;
  bool tensor = false;            // pieces on tensor cores, of 16 bits
  bool eights = false;            // axes of five to eight on tensor cores, in full precision; else multiply-adds
  std::int64_t outer = 1, inner = 1;  // what comes before and after these axes in the tile
  int width = 1;  // neighbours after the axes that a lane takes together
  bool along = false;             // or neighbours of the second axis, which is the last of the tile
};

/// All of it is part of the kernel.
struct KronChain {
  KronGpuTypes types;
  std::vector<KronShape> factors;
  std::vector<KronChainAxis> axes;
  std::vector<KronChainPhase> phases;  // in the order in which they run
  std::int64_t tile_l = 1, tile_r = 1, step_l = 1;
  std::int64_t block_threads = 256, resident = 1;  // blocks that a multiprocessor is to hold
  bool whole_r = true;  // what comes after the factors is a multiple of tile_r
  int multiprocessors = 1;
  int cluster = 1;      // blocks that share a row
  int shared_axis = 0;  // the first, or that of the last pair; of that each has a part
  /// Slots of shared memory through which rows come while others are multiplied; 0: rows come into their tiles.
  std::int64_t ring = 0;
  static constexpr std::int64_t kRingColumns = 512;  // of a slot, each with all of the first axis
  static constexpr std::int64_t kRingStep = kRingColumns + 8;  // of neighbours of the first axis in a slot, in values
  /// Whether a block asks for its first tile before it makes operands of the factors, which then come into the place of
  /// their operands instead of the tile's: of blocks that come and go, where a thread makes at most one piece of an
  /// operand and keeps it until all have read the factors. 3 to 4 % of 16^4.
  bool is_early() const;
  int at_once = 0;      // clusters that the device holds, which only its driver knows; 0: not asked. Not of the kernel
  /// One cluster on a multiprocessor runs alone: as many as fit take all rows.
  bool asks() const { return cluster > 1 && resident == 1; }

  /// Threads of a block: a ring has a warp more, which asks for what comes.
  std::int64_t threads() const { return block_threads + (ring > 0 ? 32 : 0); }
  std::int64_t shared_bytes() const;
  std::int64_t blocks(const KronGpuPlace& place) const;
  bool whole() const { return true; }
  /// An estimate of its time.
  double seconds(const KronGpuPlace& place, const KronChainCosts& costs) const;
  std::string key() const;

  bool has_tensor() const;
  bool has_eights() const;
  std::int64_t in() const;   // values of one of tile_l tiles before and after, of all blocks that share it
  std::int64_t out() const;
  std::int64_t tile_values() const;  // that shared memory holds
  /// Whether results lie where values were, so that the next tile's may take their place at once.
  bool refills() const;
  /// Whether the next tile is asked for before a tile's phases: not where blocks wait in other ways, or are alone on
  /// a multiprocessor and refill their places as they go (measured: 2 % of 32^3, 1 % of 8^5, 4 % of 16^4).
  bool fetches() const { return cluster == 1 && resident > 1; }
  /// Whether the last phase of a tile is the first one of the next: of two on tensor cores, either of which may write
  /// to memory, where no other block uses the time in which values come.
  bool alternates() const;
  /// Whether the last phase itself writes to memory: by vectors, of neighbours.
  bool direct() const;
  bool shares(std::size_t axis) const { return cluster > 1 && static_cast<int>(axis) == shared_axis; }
  /// Whether a phase reads what all blocks of the cluster have. Through a ring the first phase writes into all blocks.
  bool is_shared(std::size_t phase) const { return cluster > 1 && ring == 0 && phase + 1 == phases.size(); }
  /// Elements of an axis that a block has room for.
  std::int64_t room(std::size_t axis) const;
  /// Extent of an axis in a block when a phase begins; `phases.size()`: at the end.
  std::int64_t extent(std::size_t phase, std::size_t axis) const;
  std::int64_t ring_bytes() const;
  /// Where the operand of an axis begins in shared memory, in bytes after the tile; for axes.size(), where they end.
  std::int64_t operand_at(std::size_t axis) const;
  const KronChainPhase& phase_of(std::size_t axis) const;
};

/// Nothing where factors are too large for it.
std::optional<KronChain> plan_kron_chain(const KronGpuTypes& types, std::span<const KronShape> factors,
                                         const KronGpuPlace& place, const KronGpuProblem& problem);

/// That one, then others that are worth measuring: tiles, clusters, threads and blocks of a multiprocessor.
std::vector<KronChain> kron_chain_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                          const KronGpuPlace& place, const KronGpuProblem& problem);

}  // namespace mercer::plan
