// The plan of a product with a Kronecker product on a GPU: passes over memory, each of one or several neighbouring
// factors, and the kernel of each pass.
//
// Floor of a pass on an H200: (bytes read + bytes written) / 4.2 TB/s, or 2 P flops an element of its output at
// 65 TFLOP/s (float32).
//
// Which neighbours share a pass is decided by what the kernels say of their time: the cheapest way through the row,
// from its first factor to its last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plan/kron/kron_chain.h"
#include "plan/kron/kron_double.h"
#include "plan/kron/kron_gpu_types.h"
#include "plan/kron/kron_wide.h"

namespace mercer::plan {

struct KronStepCosts;

/// One factor, a tile of its outputs a block (kernels/cuda/kron/kron_step.cuh). All of it is part of the kernel.
struct KronGpuTile {
  KronGpuTypes types;
  std::int64_t p = 1, q = 1;
  std::int64_t tile_a = 1, tile_b = 1, tile_p = 1, tile_q = 1;
  std::int64_t thread_n = 4, thread_q = 8, groups_n = 32, groups_q = 1;

  std::int64_t threads() const { return groups_n * groups_q; }
  std::int64_t tile_n() const { return groups_n * thread_n; }
  std::int64_t shared_bytes() const;
  std::int64_t blocks(const KronGpuPlace& place) const;
  /// An estimate of its time.
  double seconds(const KronGpuPlace& place, const KronStepCosts& costs) const;
  /// Whether one block reads all that it replaces, so that a pass may write where it reads.
  bool whole() const { return tile_q == q; }
  /// Equal texts are equal kernels.
  std::string key() const;
};

inline constexpr int kMostKronFactors = 16;  // of a pass

using KronGpuKernel = std::variant<KronGpuTile, KronChain, KronWide, KronDouble>;

/// Neighbouring factors first, first + 1, ... at their turn.
struct KronGpuPass {
  int first = 0, count = 1;
  std::int64_t p = 1, q = 1;  // products of theirs
  KronGpuPlace place;
  KronGpuKernel kernel;
};

struct KronGpuPlan {
  std::vector<KronGpuPass> passes;  // in the order in which they run
  std::int64_t widest = 0;          // elements of a row between passes, with columns

  /// An estimate of its time.
  double seconds(const KronCosts& costs) const;
  /// A line for people.
  std::string to_text() const;
  /// Lines from which kron_gpu_plan_of makes it again: a pass each, with its kernel's key.
  std::string record() const;
};

/// The fastest by its estimate.
KronGpuPlan plan_kron_gpu(const KronGpuProblem& problem);

inline constexpr std::size_t kMostKronCandidates = 24;

/// Plans to measure: `plan` itself, then other divisions of the factors into passes with the kernels of the least
/// estimates, then the division of `plan` with another kernel for one pass, the least estimates first. None is thought
/// to take more than twice the time of the fastest. All keep the error bound of mercer/kron.h; bits may differ.
std::vector<KronGpuPlan> kron_gpu_candidates(const KronGpuProblem& problem, const KronGpuPlan& plan);

/// The plan of a record: of a division and kernels that candidates may have; nothing for any other text.
std::optional<KronGpuPlan> kron_gpu_plan_of(const KronGpuProblem& problem, std::string_view record);

}  // namespace mercer::plan
