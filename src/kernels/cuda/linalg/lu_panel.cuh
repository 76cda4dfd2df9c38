// LU of a panel of columns with partial pivoting, by one cluster of blocks (backend/cuda/linalg/split_lu.cpp), by rows:
//
//   for j in columns
//     p = the row at j or below of the largest |A[p, j]|, of several the first; rows j and p change places
//     for rows i > j:  A[i, j] /= A[j, j];  A[i, j+1:] -= A[i, j] A[j, j+1:]
//
// A thread has ROWS rows of the panel in registers, and rows never move between threads: each knows the place where its
// row has come to be, and stores it there at the end. So a column costs one exchange:
//
//   thread ─ redux ─► warp ─ shared memory, __syncthreads ─► block ─ st.async to every block ─► cluster
//            key                        key                          key, place and the row itself
//
// Every block gets the candidates of all blocks with their rows, and takes the same one. From there to the next
// candidates a thread needs one more column only; the others follow while candidates are compared. Two sets of records
// take turns: who writes into one again has had this block's next record, which it sent when all its threads had read
// the last one.
//
// The loop over the columns is not unrolled, which would be some 20000 instructions: a row turns in its registers, the
// column at work at its front, and finished columns come in again after the last.
//
// Budget: 256 threads of 255 registers, ROWS x WIDTH of them the rows; 42 KB of shared memory. What counts is a
// column's latency, some 900 cycles: four redux of 47, a barrier of the block, six reads of shared memory of 38 each
// after the other, a store to another block and its wait, which together take 350. A branch costs 40 to 80: so there
// is none that a selection could be.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"

#define PANEL_THREADS 256
#define PANEL_WARPS (PANEL_THREADS / 32)
#define PANEL_BLOCKS 16  // most of a cluster
#define PANEL_SETS 2     // of records

// The largest wins: that of the largest key, of several the one of the first place. With the place goes who has it: of
// a thread, which of its rows; of the cluster, which block.
#define CANDIDATE_OWNERS 16
typedef u64 Candidate;
MERCER_INLINE Candidate candidate_of(u32 key, int place, int owner) {
  return (u64)key << 32 | ~((u32)place * CANDIDATE_OWNERS + owner);
}
MERCER_INLINE u32 key_of(Candidate c) { return (u32)(c >> 32); }
MERCER_INLINE int row_place(Candidate c) { return (int)(~(u32)c / CANDIDATE_OWNERS); }
MERCER_INLINE int owner_of(Candidate c) { return (int)(~(u32)c % CANDIDATE_OWNERS); }
MERCER_INLINE Candidate largest_of_warp(Candidate own) {
  const u32 key = __reduce_max_sync(0xffffffffu, key_of(own));
  return (u64)key << 32 | __reduce_max_sync(0xffffffffu, key_of(own) == key ? (u32)own : 0u);
}
template <int COUNT>
MERCER_INLINE Candidate largest(Candidate (&of)[COUNT]) {
#pragma unroll
  for (int step = 1; step < COUNT; step *= 2)
#pragma unroll
    for (int i = 0; i + step < COUNT; i += 2 * step) of[i] = of[i] > of[i + step] ? of[i] : of[i + step];
  return of[0];
}

// Rows lie far apart in memory, so several threads of a warp fetch and store each of its 32 rows together, and turn
// them in shared memory: from a thread's parts of several rows into its own row, and back.
template <int WIDTH>
struct PanelStage {
  static constexpr int kLanes = WIDTH / 4;
  alignas(16) float rows[PANEL_WARPS][32][WIDTH + 4];

  // Row and first column of the thread's part p.
  MERCER_METHOD static int row_of(int p) { return p * (32 / kLanes) + threadIdx.x % 32 / kLanes; }
  MERCER_METHOD static int column_of() { return threadIdx.x % kLanes * 4; }

  MERCER_METHOD void to_row(float (&row)[WIDTH], const Pack<float, 4> (&parts)[kLanes]) {
    float(&own)[32][WIDTH + 4] = rows[threadIdx.x / 32];
    __syncwarp();
#pragma unroll
    for (int p = 0; p < kLanes; ++p) *(Pack<float, 4>*)&own[row_of(p)][column_of()] = parts[p];
    __syncwarp();
#pragma unroll
    for (int c = 0; c < WIDTH; c += 4) {
      const Pack<float, 4> four = *(const Pack<float, 4>*)&own[threadIdx.x % 32][c];
#pragma unroll
      for (int k = 0; k < 4; ++k) row[c + k] = four.value[k];
    }
  }
  MERCER_METHOD void to_parts(Pack<float, 4> (&parts)[kLanes], const float (&row)[WIDTH]) {
    float(&own)[32][WIDTH + 4] = rows[threadIdx.x / 32];
    __syncwarp();
#pragma unroll
    for (int c = 0; c < WIDTH; c += 4)
      *(Pack<float, 4>*)&own[threadIdx.x % 32][c] = {row[c], row[c + 1], row[c + 2], row[c + 3]};
    __syncwarp();
#pragma unroll
    for (int p = 0; p < kLanes; ++p) parts[p] = *(const Pack<float, 4>*)&own[row_of(p)][column_of()];
  }
};

// Stores without the branch that a condition around several stores would be.
MERCER_INLINE void store_shared_if(bool on, u32 to, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.v4.b32 [%1], {%2, %3, %4, %5};}" ::"r"((u32)on),
               "r"(to), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// A candidate and its row from the column at work on, zeros after the panel's last.
template <int WIDTH>
struct PanelRecord {
  Candidate candidate;
  float inverse;  // of the pivot
  u32 is_plain;   // a factor by the inverse is one by division
  float row[WIDTH];
};

// The rows of a thread: ROWS of them, a cluster's threads apart.
template <int ROWS, int WIDTH>
struct PanelRows {
  typedef PanelStage<WIDTH> Stage;
  typedef PanelRecord<WIDTH> Record;
  float value[ROWS][WIDTH];       // from the column at work on, then the finished ones
  int place[ROWS];                // from the panel's first row on; above the column at work: done, or no row
  float times[ROWS], done[ROWS];  // of the column before: what takes the pivot's row off, and what is stored
  float pivot[WIDTH];             // the row of the column before

  MERCER_METHOD static i64 index(int r) {
    return ((i64)r * gridDim.x + blockIdx.x) * PANEL_THREADS + threadIdx.x;
  }

  // All loads are on their way before the first row is put together.
  MERCER_METHOD void load(const LuPanelArguments& a, Stage& stage) {
    if (a.width == WIDTH)
      load_columns<true>(a, stage);
    else
      load_columns<false>(a, stage);
    start();
  }
  template <bool WHOLE>
  MERCER_METHOD void load_columns(const LuPanelArguments& a, Stage& stage) {
    Pack<float, 4> parts[ROWS][Stage::kLanes];
    const int column = Stage::column_of();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const i64 first = index(r) - threadIdx.x % 32 + Stage::row_of(0), left = a.rows - first;
      const float* const from = a.a + first * a.stride + column;
      place[r] = index(r) < a.rows ? (int)index(r) : -1;
#pragma unroll
      for (int p = 0; p < Stage::kLanes; ++p) {
        const int down = p * (32 / Stage::kLanes);
        parts[r][p] = {};
        if (WHOLE) {
          if (down < left) parts[r][p] = *(const Pack<float, 4>*)(from + down * a.stride);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (down < left && column + k < a.width) parts[r][p].value[k] = from[down * a.stride + k];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) stage.to_row(value[r], parts[r]);
  }

  // Past the columns that the panel has not.
  MERCER_METHOD void store(const LuPanelArguments& a, Stage& stage) {
    finish();
#pragma unroll 1
    for (int j = a.width; j < WIDTH; ++j) turn();
    if (a.width == WIDTH)
      store_columns<true>(a, stage);
    else
      store_columns<false>(a, stage);
  }
  template <bool WHOLE>
  MERCER_METHOD void store_columns(const LuPanelArguments& a, Stage& stage) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      Pack<float, 4> parts[Stage::kLanes];
      stage.to_parts(parts, value[r]);
#pragma unroll
      for (int p = 0; p < Stage::kLanes; ++p) {
        const int row = __shfl_sync(0xffffffffu, place[r], Stage::row_of(p)), column = Stage::column_of();
        float* const to = a.a + row * a.stride + column;
        if (WHOLE) {
          if (row >= 0) *(Pack<float, 4>*)to = parts[p];
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (row >= 0 && column + k < a.width) to[k] = parts[p].value[k];
        }
      }
      // Who comes to be among the first rows, and where the first rows go that leave them.
      const i64 i = index(r);
      if (place[r] >= 0 && place[r] < a.width) a.from[place[r]] = (int)i;
      if (place[r] >= 0 && i < a.width) a.to[i] = place[r] < a.width ? -1 : place[r];
    }
  }

  MERCER_METHOD Candidate candidate(int j) const {
    Candidate own[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const u32 key = (bits_of(value[r][0]) & 0x7fffffffu) + 1;
      own[r] = candidate_of(place[r] < j ? 0u : key, place[r], r);
    }
    return largest(own);
  }

  // Column j by its pivot, and the next one, which comes to the front. A quotient's remainder that is too small for a
  // normal float is too small for the matrix, too: so the pivot alone says how factors are found.
  MERCER_METHOD void begin(int j, int from, const Record& record) {
    const float inverse = record.inverse;
    const bool plain = record.is_plain;
#pragma unroll
    for (int c = 0; c < WIDTH; c += 4) {
      const Pack<float, 4> four = *(const Pack<float, 4>*)(record.row + c);
#pragma unroll
      for (int k = 0; k < 4; ++k) pivot[c + k] = four.value[k];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int old = place[r];
      place[r] = old == from ? j : old == j ? from : old;
      const float own = value[r][0], near = own * inverse;
      done[r] = __fmaf_rn(__fmaf_rn(-near, pivot[0], own), inverse, near);
    }
    if (!plain) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) done[r] = pivot[0] != 0 ? value[r][0] / pivot[0] : value[r][0];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool waits = place[r] > j;
      times[r] = waits ? done[r] : 0.0f;
      done[r] = waits ? done[r] : value[r][0];
      value[r][0] = __fmaf_rn(-times[r], pivot[1], value[r][1]);
    }
  }
  // Row r as a candidate's record, where `on`.
  MERCER_METHOD void write(bool on, int r, Candidate candidate, Record& record) const {
    const u32 to = shared_address(&record);
    const float size = fabsf(value[r][0]);
    store_shared_if(on, to, (u32)candidate, (u32)(candidate >> 32), bits_of(inverse_of(value[r][0])),
                    size > 0x1p-100f & size < 0x1p100f);
#pragma unroll
    for (int c = 0; c < WIDTH; c += 4)
      store_shared_if(on, to + 16 + c * 4, bits_of(value[r][c]), bits_of(value[r][c + 1]), bits_of(value[r][c + 2]),
                      bits_of(value[r][c + 3]));
  }
  // The columns after the next one. Rows that are done take zero times the pivot's.
  MERCER_METHOD void finish() {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int c = 2; c < WIDTH; ++c) value[r][c - 1] = __fmaf_rn(-times[r], pivot[c], value[r][c]);
      value[r][WIDTH - 1] = done[r];
    }
  }
  // Before the first column: so that `finish` puts the rows in their places.
  MERCER_METHOD void start() {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float last = value[r][WIDTH - 1];
      done[r] = last;
      times[r] = 0;
#pragma unroll
      for (int c = WIDTH - 1; c > 1; --c) value[r][c] = value[r][c - 1];
    }
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) pivot[c] = 0;
  }
  MERCER_METHOD void turn() {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float front = value[r][0];
#pragma unroll
      for (int c = 1; c < WIDTH; ++c) value[r][c - 1] = value[r][c];
      value[r][WIDTH - 1] = front;
    }
  }
};

template <int WIDTH>
struct PanelShared {
  alignas(16) PanelRecord<WIDTH> records[PANEL_SETS][PANEL_BLOCKS];
  alignas(16) PanelRecord<WIDTH> own;  // of this block's candidate
  alignas(16) Candidate warps[PANEL_SETS][PANEL_WARPS];
  u64 full[PANEL_SETS];
};

MERCER_INLINE u32 mapped_address(u32 address, int block) {
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(block));
  return mapped;
}
// 16 bytes into the memory of another block of the cluster, counted by its barrier.
MERCER_INLINE void send_16(u32 to, u32 barrier, const uint4& v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
               : "memory");
}

// A warp stores a record into all blocks: a lane has 16 bytes of it, and several lanes together write to one block. To
// leave such a store out takes a branch, so what is too many for the blocks goes to the last one again.
template <int WIDTH>
struct RecordSender {
  static constexpr int kParts = WIDTH / 4 + 1, kTogether = 32 / kParts;
  static constexpr int kSends = (PANEL_BLOCKS + kTogether - 1) / kTogether;
  int part;
  u32 shared_of[kSends];  // of the blocks that the lane writes to
  u32 bytes_of_part;      // that each block has of all others

  MERCER_METHOD void start(PanelShared<WIDTH>& shared) {
    const int lane = threadIdx.x % 32, blocks = gridDim.x;
    part = lane < kTogether * kParts ? lane % kParts : kParts;
    int count = 0;
#pragma unroll
    for (int s = 0; s < kSends; ++s) {
      const int block = min(s * kTogether + lane / kParts, blocks - 1);
      shared_of[s] = mapped_address(shared_address(&shared), block);
      count += part == 0 && s * kTogether < blocks && block == (int)blockIdx.x;
    }
    bytes_of_part = (u32)blocks * 16 * __reduce_add_sync(0xffffffffu, (u32)count);
  }
  // Parts of a row with `left` unfinished columns. Columns after them are sent as zeros, once into each set.
  MERCER_METHOD static int parts(int left) { return min(WIDTH / 4, (left + PANEL_SETS + 3) / 4) + 1; }
  MERCER_METHOD u32 bytes(int left) const { return bytes_of_part * parts(left); }

  MERCER_METHOD void send(const PanelShared<WIDTH>& shared, int left, int set) const {
    if (part >= parts(left)) return;
    uint4 v = *((const uint4*)&shared.own + part);
    left = part == 0 ? 4 : left + 4 - part * 4;
    v.x = left > 0 ? v.x : 0;
    v.y = left > 1 ? v.y : 0;
    v.z = left > 2 ? v.z : 0;
    v.w = left > 3 ? v.w : 0;
    const u32 base = shared_address(&shared), to = shared_address(&shared.records[set][blockIdx.x]) - base + part * 16,
              full = shared_address(&shared.full[set]) - base;
#pragma unroll
    for (int s = 0; s < kSends; ++s)
      if (s * kTogether < (int)gridDim.x) send_16(shared_of[s] + to, shared_of[s] + full, v);
  }
};

// The block's candidate, from the largest of its warps, and its row to all blocks, by the warp that has it; of a block
// without rows the first warp says so.
template <int ROWS, int WIDTH>
MERCER_INLINE void offer(const PanelRows<ROWS, WIDTH>& rows, const RecordSender<WIDTH>& sender,
                         PanelShared<WIDTH>& shared, Candidate own, Candidate of_warp, int left, int set) {
  Candidate of_warps[PANEL_WARPS];
#pragma unroll
  for (int w = 0; w < PANEL_WARPS; ++w) of_warps[w] = shared.warps[set][w];
  const Candidate best = largest(of_warps);
  const bool has_row = key_of(best) != 0 & best == of_warp, is_first = threadIdx.x / 32 == 0;
  if (has_row | (key_of(best) == 0 & is_first)) {
    const bool writes = has_row ? own == best : threadIdx.x % 32 == 0;
    const int row = has_row ? owner_of(own) : 0;
    const Candidate of_block = has_row ? candidate_of(key_of(own), row_place(own), blockIdx.x) : 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rows.write(writes & row == r, r, of_block, shared.own);
    __syncwarp();
    sender.send(shared, left, set);
  }
}

template <int ROWS, int WIDTH>
MERCER_INLINE void factor_panel(const LuPanelArguments& a) {
  typedef PanelShared<WIDTH> Shared;
  typedef PanelStage<WIDTH> Stage;
  typedef PanelRecord<WIDTH> Record;
  static_assert(ROWS <= CANDIDATE_OWNERS && PANEL_BLOCKS <= CANDIDATE_OWNERS, "an owner goes with its place");
  __shared__ __align__(16) Shared shared;
  __shared__ __align__(16) Stage stage;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
  const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
  const u32 first_full = shared_address(shared.full);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int set = 0; set < PANEL_SETS; ++set) barrier_init(first_full + set * 8, 1);
    barrier_init_done();
  }
  RecordSender<WIDTH> sender;
  sender.start(shared);
  PanelRows<ROWS, WIDTH> rows;
  wait_for_kernel_ahead();
  rows.load(a, stage);
  if (threadIdx.x < sizeof(Record) / 4) ((u32*)&shared.own)[threadIdx.x] = 0;
  cluster_barrier();
  int zero = 0, from = 0;
#pragma unroll 1
  for (int j = 0; j < a.width; ++j) {
    const int set = j % PANEL_SETS;
    const Candidate own = rows.candidate(j), of_warp = largest_of_warp(own);
    if (lane == 0) shared.warps[set][warp] = of_warp;
    rows.finish();
    __syncthreads();
    offer(rows, sender, shared, own, of_warp, WIDTH - j, set);
    const u32 full = first_full + set * 8;
    if (threadIdx.x == 0) barrier_expect(full, sender.bytes(WIDTH - j));
    if (tells && j > 0) {
      a.pivots[j - 1] = a.first + from + 1;
      zero = rows.pivot[0] == 0 && zero == 0 ? (int)a.first + j : zero;
    }
    barrier_wait(full, (u32)(j / PANEL_SETS) & 1);
    const Candidate pivot = largest_of_warp(lane < blocks ? shared.records[set][lane].candidate : 0);
    from = row_place(pivot);
    rows.begin(j, from, shared.records[set][owner_of(pivot)]);
  }
  if (tells) {
    a.pivots[a.width - 1] = a.first + from + 1;
    zero = rows.pivot[0] == 0 && zero == 0 ? (int)a.first + a.width : zero;
  }
  rows.store(a, stage);
  if (zero != 0 && *a.said == 0) *a.said = zero;
}

extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_2(const __grid_constant__ LuPanelArguments a) {
  factor_panel<2, 32>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_4(const __grid_constant__ LuPanelArguments a) {
  factor_panel<4, 32>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_8(const __grid_constant__ LuPanelArguments a) {
  factor_panel<8, 16>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_16(const __grid_constant__ LuPanelArguments a) {
  factor_panel<16, 8>(a);
}
