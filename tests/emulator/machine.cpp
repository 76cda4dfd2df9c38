#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator switches fibers of x86-64"
#endif

namespace emulator {
namespace {

// Stacks an odd number of pages apart, whose tops lie at unlike places of a page: if all of a cluster's were at equal
// places of 1 MiB, they would share one set of each cache and of the TLB, and each switch would miss.
constexpr std::size_t kGuardBytes = 4096, kStackBytes = 1024 * 1024 + kGuardBytes;
constexpr std::size_t unlike(std::size_t fiber) { return fiber * 704 % 4096; }

// Saves what a called function must keep, leaves by the stack of another fiber.
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

/// The fibers of a thread of the host.
/// Stacks of fibers, and shared memory of blocks.
struct Memory {
  unsigned char* stacks = nullptr;
  std::size_t stack_count = 0;
  unsigned char* shared = nullptr;
  std::size_t shared_blocks = 0;
};

/// What no launch uses, for the next one: guards of thousands of stacks take longer than most kernels.
struct IdleMemory {
  std::mutex mutex;
  std::vector<Memory> list;
};
IdleMemory& idle_memory() {
  static IdleMemory* const kept = new IdleMemory;
  return *kept;
}

struct Runner {
  const Launch* launch = nullptr;
  void** args = nullptr;
  Cluster cluster;
  std::vector<Thread> threads;
  Thread* current = nullptr;
  void* scheduler = nullptr;
  Memory memory;
  std::uint64_t random = 0x9e3779b97f4a7c15ull;

  ~Runner() {
    const std::lock_guard lock(idle_memory().mutex);
    idle_memory().list.push_back(memory);
  }
};

// Read at every switch: initial-exec spares a call for its address.
[[gnu::tls_model("initial-exec")]] thread_local Runner* runner = nullptr;

[[noreturn]] void fail(const char* what) {
  const Runner& r = *runner;
  const Thread* t = r.current;
  std::fprintf(stderr, "emulator: %s: %s", r.launch->kernel.name, what);
  if (t != nullptr) std::fprintf(stderr, "; block %u, thread %u", t->block->index.x, t->index.x);
  std::fprintf(stderr, "\n");
  std::abort();
}

void yield() {
  Runner& r = *runner;
  emulator_switch(&r.current->stack, r.scheduler);
}

void leave(Thread& t) {
  t.done = true;
  t.warp->live &= ~(1u << t.lane);
  --t.block->live;
  --t.block->cluster->live;
  ++t.block->cluster->progress;
}

[[noreturn]] void thread_main() {
  Runner& r = *runner;
  Thread& t = *r.current;
  r.launch->kernel.call(r.args);
  leave(t);
  emulator_switch(&t.stack, r.scheduler);
  std::abort();
}

unsigned char* map(std::size_t bytes) {
  void* place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) fail("no memory for fibers");
  return static_cast<unsigned char*>(place);
}

void prepare(Runner& r) {
  const Launch& launch = *r.launch;
  const std::size_t block = static_cast<std::size_t>(launch.block.x) * launch.block.y * launch.block.z;
  const std::size_t count = block * static_cast<std::size_t>(launch.cluster);
  r.threads.resize(count);
  Memory& memory = r.memory;
  {
    const std::lock_guard lock(idle_memory().mutex);
    std::vector<Memory>& list = idle_memory().list;
    if (!list.empty()) {
      memory = list.back();
      list.pop_back();
    }
  }
  if (memory.stack_count < count) {
    if (memory.stacks != nullptr) ::munmap(memory.stacks, memory.stack_count * kStackBytes);
    memory.stacks = map(count * kStackBytes);
    memory.stack_count = count;
    for (std::size_t i = 0; i < count; ++i) ::mprotect(memory.stacks + i * kStackBytes, kGuardBytes, PROT_NONE);
  }
  const auto blocks = static_cast<std::size_t>(launch.cluster);
  if (memory.shared_blocks < blocks) {
    if (memory.shared != nullptr) ::munmap(memory.shared, memory.shared_blocks * kSharedBytes);
    memory.shared = map(blocks * kSharedBytes);
    memory.shared_blocks = blocks;
  }
}

void start_cluster(Runner& r, std::size_t first) {
  const Launch& launch = *r.launch;
  const std::size_t block_threads = static_cast<std::size_t>(launch.block.x) * launch.block.y * launch.block.z;
  r.cluster = Cluster();
  r.cluster.blocks.resize(static_cast<std::size_t>(launch.cluster));
  for (std::size_t rank = 0; rank < r.cluster.blocks.size(); ++rank) {
    Block& block = r.cluster.blocks[rank];
    const std::size_t linear = first + rank;
    block.index = {static_cast<unsigned>(linear % launch.grid.x),
                   static_cast<unsigned>(linear / launch.grid.x % launch.grid.y),
                   static_cast<unsigned>(linear / launch.grid.x / launch.grid.y)};
    block.threads = launch.block;
    block.grid = launch.grid;
    block.rank = static_cast<unsigned>(rank);
    block.live = static_cast<int>(block_threads);
    block.cluster = &r.cluster;
    block.warps.resize((block_threads + kWarp - 1) / kWarp);
    block.shared = r.memory.shared + rank * kSharedBytes;
    block.shared_used = (launch.shared_bytes + 1023) / 1024 * 1024;
    // NaN, and in every other block floats: kernels may compute again what is not finite.
    std::memset(block.shared, linear % 2 == 0 ? 0xff : 0x47, std::min(kSharedBytes, block.shared_used + 64 * 1024));
    r.cluster.live += block.live;
  }
  for (std::size_t i = 0; i < r.threads.size(); ++i) {
    Thread& t = r.threads[i];
    const std::size_t of_block = i % block_threads;
    t = Thread();
    t.block = &r.cluster.blocks[i / block_threads];
    t.warp = &t.block->warps[of_block / kWarp];
    t.lane = static_cast<int>(of_block % kWarp);
    t.warp->live |= 1u << t.lane;
    t.index = {static_cast<unsigned>(of_block % launch.block.x),
               static_cast<unsigned>(of_block / launch.block.x % launch.block.y),
               static_cast<unsigned>(of_block / launch.block.x / launch.block.y)};
    // Six saved registers, the place to return to, and the misalignment that a call leaves.
    auto** top = reinterpret_cast<void**>(r.memory.stacks + (i + 1) * kStackBytes - unlike(i)) - 1;
    *--top = reinterpret_cast<void*>(&thread_main);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    t.stack = top;
  }
}

/// Every place where threads wait, and how many do.
[[noreturn]] void report_deadlock(const Runner& r) {
  std::map<std::string, int> places;
  for (const Thread& t : r.threads)
    if (!t.done)
      ++places["warp " + std::to_string(t.index.x / kWarp) + " of block " + std::to_string(t.block->index.x) +
               " waits for " + t.waits_for + " at " + std::to_string(t.waits_at)];
  for (const auto& [place, count] : places) std::fprintf(stderr, "emulator: %d of %s\n", count, place.c_str());
  fail("every thread waits");
}

void run_cluster(Runner& r, std::size_t first) {
  start_cluster(r, first);
  Thread** const self = r.launch->kernel.self();
  const std::size_t count = r.threads.size();
  while (r.cluster.live > 0) {
    const std::uint64_t before = r.cluster.progress;
    r.random ^= r.random << 13;
    r.random ^= r.random >> 7;
    r.random ^= r.random << 17;
    const bool backwards = (r.random >> 40 & 1) != 0;
    std::size_t turn = r.random % count;
    for (std::size_t i = 0; i < count; ++i) {
      Thread& t = r.threads[turn];
      turn = backwards ? (turn == 0 ? count : turn) - 1 : (turn + 1 == count ? 0 : turn + 1);
      if (t.done || t.seen == r.cluster.progress) continue;  // nothing that it may wait for has changed
      t.seen = r.cluster.progress;
      r.current = *self = &t;
      emulator_switch(&r.scheduler, t.stack);
    }
    r.current = nullptr;
    if (r.cluster.progress == before) report_deadlock(r);
  }
}

}  // namespace

const Host kHost = {yield, fail};

void run(const Launch& launch, void** args) {
  const std::size_t blocks = static_cast<std::size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
  const std::size_t cluster = static_cast<std::size_t>(launch.cluster);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    Runner own;
    own.launch = &launch;
    own.args = args;
    Runner* const outer = runner;
    runner = &own;
    prepare(own);
    for (std::size_t first = next.fetch_add(cluster); first < blocks; first = next.fetch_add(cluster)) {
      own.random += first;
      run_cluster(own, first);
    }
    runner = outer;
  };
  const std::size_t helpers =
      std::min<std::size_t>(std::thread::hardware_concurrency(), (blocks + cluster - 1) / cluster);
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < helpers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace emulator
