// What kernels of compute capability 9.0 stand on: blocks of a cluster, products of warpgroups, rings of stages.
#pragma once

#include "common/prelude.cuh"

// The barrier in another block of the cluster. Nothing but reads of shared memory comes before, so that no fence is
// asked for: .release.cluster would wait for every store of the epilogue.
MERCER_INLINE void arrive_at(u32 barrier, u32 block) {
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::
          "r"(barrier),
      "r"(block)
      : "memory");
}
MERCER_INLINE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// The barrier in two parts, for threads that have only read: nothing that was written is waited for.
MERCER_INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
MERCER_INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
MERCER_INLINE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Where this block's `address` is in another one of the cluster; what lies there.
MERCER_INLINE u32 address_in_block(u32 address, u32 block) {
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
  return remote;
}
template <int BYTES_BEHIND = 0>
MERCER_INLINE uint2 load_two_of_cluster(u32 address) {
  uint2 x;
  asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2 + %3];"
               : "=r"(x.x), "=r"(x.y)
               : "r"(address), "n"(BYTES_BEHIND)
               : "memory");
  return x;
}
template <int BYTES_BEHIND = 0>
MERCER_INLINE uint4 load_four_of_cluster(u32 address) {
  uint4 x;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4 + %5];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address), "n"(BYTES_BEHIND)
               : "memory");
  return x;
}
// Copies bytes to the same place in shared memory of another block of the cluster, counted by its barrier.
MERCER_INLINE void copy_to_block(u32 shared, u32 bytes, u32 barrier, u32 block) {
  asm volatile(
      "{.reg .b32 to, bar; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 bar, %2, %3; "
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [bar];}" ::"r"(shared),
      "r"(bytes), "r"(barrier), "r"(block)
      : "memory");
}
MERCER_INLINE void copy_bulk_to_all(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier), "h"((u16)((1 << CLUSTER) - 1))
      : "memory");
}
MERCER_INLINE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MERCER_INLINE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// The operand so many bytes after another one. Where the compiler does not keep descriptors in UNIFORM registers, the
// lower half alone is changed, in two instructions a product: an addition of 64 bits takes six.
template <bool UNIFORM>
MERCER_INLINE u64 descriptor_at(u64 descriptor, int bytes) {
  if (UNIFORM) return descriptor + (u64)(bytes / 16);
  u32 low, high;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
  u64 moved;
  asm("mov.b64 %0, {%1, %2};" : "=l"(moved) : "r"(low + bytes / 16), "r"(high));
  return moved;
}
template <int PENDING>
MERCER_INLINE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// A stage of COUNT, and the parity of the round.
template <int COUNT>
struct Ring {
  int stage;
  u32 parity;
  MERCER_METHOD void advance() {
    if (++stage == COUNT) {
      stage = 0;
      parity ^= 1;
    }
  }
};
