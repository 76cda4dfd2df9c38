// LU of a panel of columns with partial pivoting, by one cluster of blocks (backend/cuda/split_lu.cpp), by rows:
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
// Every block gets the candidates of all blocks with their rows, and takes the same one. Two sets of records take
// turns: who writes into one again has had this block's next record, which it sent when all its threads were done with
// the last one.
//
// Budget: 512 threads of 128 registers, ROWS x WIDTH of them the rows; 6 KB of shared memory. Floor of a column: some
// 600 cycles of latency (two pairs of redux, a barrier of the block, a store to another block and its wait), beside
// ROWS x WIDTH / 2 x 4 issue slots a scheduler.
#define PANEL_THREADS 512
#define PANEL_WARPS (PANEL_THREADS / 32)
#define PANEL_BLOCKS 16  // most of a cluster

struct Candidate {
  u32 key, place;
};

// Of a warp, the largest key, of several that of the first place.
MERCER_INLINE Candidate first_largest(u32 key, u32 place) {
  const u32 most = __reduce_max_sync(0xffffffffu, key);
  return {most, __reduce_min_sync(0xffffffffu, key == most ? place : 0xffffffffu)};
}

// 16 bytes into the memory of another block of the cluster, counted by its barrier.
MERCER_INLINE void send_16(u32 to, u32 barrier, u32 block, const uint4& v) {
  asm volatile(
      "{.reg .b32 to, bar; mapa.shared::cluster.u32 to, %0, %6; mapa.shared::cluster.u32 bar, %1, %6; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%2, %3, %4, %5}, [bar];}" ::"r"(to),
      "r"(barrier), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(block)
      : "memory");
}

MERCER_INLINE float pivot_quotient(float value, float pivot, float inverse) {
  const float near = value * inverse;
  const bool plain = fabsf(pivot) > 0x1p-100f && fabsf(pivot) < 0x1p100f && fabsf(value) > 0x1p-70f;
  return plain ? __fmaf_rn(__fmaf_rn(-near, pivot, value), inverse, near) : value / pivot;
}

// The rows of a thread: ROWS of them, a cluster's threads apart.
template <int ROWS, int WIDTH>
struct PanelRows {
  float value[ROWS][WIDTH];
  int place[ROWS];  // from the panel's first row on; above the column at work where the row is done, or is none

  MERCER_METHOD static i64 index(int r) {
    return ((i64)r * gridDim.x + blockIdx.x) * PANEL_THREADS + threadIdx.x;
  }

  MERCER_METHOD void load(const LuPanelArguments& a) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const i64 i = index(r);
      const float* from = a.a + i * a.stride;
      place[r] = i < a.rows ? (int)i : -1;
#pragma unroll
      for (int c = 0; c < WIDTH; c += 4) {
        Pack<float, 4> four = {};
        if (i < a.rows && c + 4 <= a.width) {
          four = *(const Pack<float, 4>*)(from + c);
        } else if (i < a.rows) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (c + k < a.width) four.value[k] = from[c + k];
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) value[r][c + k] = four.value[k];
      }
    }
  }

  MERCER_METHOD void store(const LuPanelArguments& a) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (place[r] < 0) continue;
      float* to = a.a + place[r] * a.stride;
#pragma unroll
      for (int c = 0; c < WIDTH; c += 4) {
        if (c + 4 <= a.width) {
          *(Pack<float, 4>*)(to + c) = {value[r][c], value[r][c + 1], value[r][c + 2], value[r][c + 3]};
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (c + k < a.width) to[c + k] = value[r][c + k];
        }
      }
      // Who comes to be among the first rows, and where the first rows go that leave them.
      const i64 i = index(r);
      if (place[r] < a.width) a.from[place[r]] = (int)i;
      if (i < a.width) a.to[i] = place[r] < a.width ? -1 : place[r];
    }
  }

  MERCER_METHOD Candidate candidate(int j) const {
    Candidate best = {0, 0xffffffffu};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (place[r] < j) continue;
      const u32 key = (bits_of(value[r][j]) & 0x7fffffffu) + 1, at = (u32)place[r];
      if (key > best.key || (key == best.key && at < best.place)) best = {key, at};
    }
    return best;
  }

  // `row`: of the pivot, which comes from `from`.
  MERCER_METHOD void eliminate(int j, int from, const float* row) {
    const float pivot = row[j], inverse = 1.0f / pivot;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool wins = place[r] == from;
      if (wins || place[r] == j) place[r] = wins ? j : from;
      if (place[r] <= j) continue;
      const float times = pivot != 0 ? pivot_quotient(value[r][j], pivot, inverse) : value[r][j];
      value[r][j] = times;
#pragma unroll
      for (int c = (j + 1) / 4 * 4; c < WIDTH; c += 4) {
        const Pack<float, 4> four = *(const Pack<float, 4>*)(row + c);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (c + k > j) value[r][c + k] = __fmaf_rn(-times, four.value[k], value[r][c + k]);
      }
    }
  }
};

template <int WIDTH>
struct PanelShared {
  float record[2][PANEL_BLOCKS][WIDTH + 4];  // key, place, two words, the row
  float row[WIDTH];                          // of this block's candidate
  Candidate warps[2][PANEL_WARPS];
  u64 full[2];
};

template <int ROWS, int WIDTH>
MERCER_INLINE void send_record(PanelShared<WIDTH>& shared, const PanelRows<ROWS, WIDTH>& rows, Candidate best, int j) {
  const int lane = threadIdx.x % 32, blocks = gridDim.x, block = lane % blocks, set = j % 2;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (best.key == 0 || rows.place[r] != (int)best.place) continue;
#pragma unroll
    for (int c = j / 4 * 4; c < WIDTH; ++c) shared.row[c] = rows.value[r][c];
  }
  __syncwarp();
  const u32 to = shared_address(shared.record[set][blockIdx.x]), barrier = shared_address(&shared.full[set]);
#pragma unroll 1
  for (int part = lane / blocks; part <= WIDTH / 4 - j / 4; part += 32 / blocks) {
    const int chunk = part == 0 ? 0 : j / 4 + part;
    const uint4 v = part == 0 ? uint4{best.key, best.place, 0, 0} : *(const uint4*)&shared.row[chunk * 4 - 4];
    send_16(to + chunk * 16, barrier, block, v);
  }
}

// The column's row of all, which lies in the records of the set.
template <int ROWS, int WIDTH>
MERCER_INLINE int exchange_rows(PanelShared<WIDTH>& shared, const PanelRows<ROWS, WIDTH>& rows, int j, int& from) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, set = j % 2, blocks = gridDim.x;
  const Candidate own = rows.candidate(j), of_warp = first_largest(own.key, own.place);
  if (lane == 0) shared.warps[set][warp] = of_warp;
  __syncthreads();
  Candidate best = {0, 0xffffffffu};
  if (lane < PANEL_WARPS) best = shared.warps[set][lane];
  best = first_largest(best.key, best.place);
  // The warp that has the row sends it; of a block without rows the first one says so.
  if (best.key == 0 ? warp == 0 : of_warp.key == best.key && of_warp.place == best.place)
    send_record(shared, rows, best, j);
  const u32 barrier = shared_address(&shared.full[set]);
  if (threadIdx.x == 0) barrier_expect(barrier, (u32)(blocks * 16 * (1 + WIDTH / 4 - j / 4)));
  barrier_wait(barrier, (u32)(j / 2) & 1);
  Candidate of_block = {0, 0xffffffffu};
  if (lane < blocks) of_block = *(const Candidate*)shared.record[set][lane];
  best = first_largest(of_block.key, of_block.place);
  from = (int)best.place;
  return __ffs(__ballot_sync(0xffffffffu, of_block.key == best.key && of_block.place == best.place)) - 1;
}

template <int ROWS, int WIDTH>
MERCER_INLINE void factor_panel(const LuPanelArguments& a) {
  typedef PanelShared<WIDTH> Shared;
  __shared__ __align__(16) Shared shared;
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.full[0]), 1);
    barrier_init(shared_address(&shared.full[1]), 1);
    barrier_init_done();
  }
  PanelRows<ROWS, WIDTH> rows;
  rows.load(a);
  if (threadIdx.x < WIDTH) shared.row[threadIdx.x] = 0;
  cluster_barrier();
  int zero = 0;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) {
    if (j >= a.width) break;
    int from;
    const int winner = exchange_rows(shared, rows, j, from);
    const float* row = shared.record[j % 2][winner] + 4;
    rows.eliminate(j, from, row);
    if (blockIdx.x != 0 || threadIdx.x != 0) continue;
    a.pivots[j] = a.first + from + 1;
    if (row[j] == 0 && zero == 0) zero = (int)a.first + j + 1;
  }
  rows.store(a);
  if (zero != 0 && *a.said == 0) *a.said = zero;
}

extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_1(const __grid_constant__ LuPanelArguments a) {
  factor_panel<1, 32>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_2(const __grid_constant__ LuPanelArguments a) {
  factor_panel<2, 32>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_4(const __grid_constant__ LuPanelArguments a) {
  factor_panel<4, 16>(a);
}
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_of_8(const __grid_constant__ LuPanelArguments a) {
  factor_panel<8, 8>(a);
}
