// The state of an emulated GPU while a cluster of blocks runs: what machine.cpp schedules and translated kernels see.
//
// Every thread of a cluster is a fiber of one thread of the host, so between two points where a thread may wait nothing
// else of its cluster runs. Copies of the copy engine and cp.async are made as late as their waits allow, and threads
// take turns in a changing order: a wait or a barrier too few shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace emulator {

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

constexpr int kWarp = 32, kSharedSites = 64, kNamedBarriers = 16;
constexpr std::uint32_t kRankShift = 24;  // an address in shared memory: the block's rank, the offset in its memory
constexpr std::size_t kSharedBytes = 512 * 1024;

/// A place where threads wait for one another.
struct Meeting {
  int arrived = 0;
  unsigned generation = 0;
};

/// Lanes that exchange a value each; two buffers, since a lane may be back before the last one has read.
struct WarpMeeting {
  std::uint32_t mask = 0, arrived = 0;
  unsigned generation = 0;
  std::uint64_t values[2][kWarp] = {};
  std::uint32_t took_part[2] = {};  // lanes that may have ended since
};

struct Warp {
  std::uint32_t live = 0;
  WarpMeeting meetings[4];  // by mask
};

struct BulkCopy {
  unsigned char* to = nullptr;
  const void* from = nullptr;  // null: `value`
  std::size_t bytes = 0;
  std::uint32_t value[4] = {};
};

struct Cluster;

struct Block {
  Size3 index, threads, grid;
  unsigned rank = 0;
  int live = 0;
  Meeting meeting, named[kNamedBarriers];
  Cluster* cluster = nullptr;
  std::vector<Warp> warps;
  std::map<std::uint32_t, std::vector<BulkCopy>> copies;
  unsigned char* shared = nullptr;
  std::size_t shared_used = 0;
  unsigned found = 0;                    // of __syncthreads_or
  std::size_t sites[kSharedSites] = {};  // of `__shared__` declarations, offset + 1
};

struct Cluster {
  std::vector<Block> blocks;
  Meeting meeting;
  int live = 0;
  std::uint64_t progress = 0;  // grows whenever a wait may end
};

/// A copy of `bytes`, after which there are zeros up to `size`.
struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 16, size = 16;
};

struct Thread {
  Block* block = nullptr;
  Warp* warp = nullptr;
  Size3 index;
  int lane = 0;
  bool done = false;
  void* stack = nullptr;  // where it goes on
  std::uint64_t seen = ~std::uint64_t(0);  // the cluster's progress when it last got its turn
  const char* waits_for = nullptr;
  std::uint32_t waits_at = 0;
  std::vector<std::vector<PendingCopy>> groups;
  std::vector<PendingCopy> open_group;
};

/// What a translated kernel calls.
struct Host {
  void (*yield)();
  void (*fail)(const char* what);
};

/// A kernel of a loaded module.
struct Kernel {
  const char* name = "";
  void (*call)(void** args) = nullptr;
  void** (*clone)(void** args) = nullptr;
  Thread** (*self)() = nullptr;
  int cluster = 1;
};

struct Launch {
  Kernel kernel;
  Size3 grid, block;
  std::size_t shared_bytes = 0;
  int cluster = 1;
};

extern const Host kHost;
void run(const Launch& launch, void** args);

}  // namespace emulator
