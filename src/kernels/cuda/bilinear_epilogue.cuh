// From the sums of a tile to its values, and the pairs that cancel (bilinear_tile.cuh).
//
// A warp's 16 rows x TILE_N columns pass through its part of shared memory, 512 pairs at a time: written by
// accumulators, read by rows of four columns, and for the half below the diagonal by columns of four rows. In row r,
// 16-byte chunk c lies at c ^ (2 (r % 4) + r / 4 % 2), so that neither side collides. Strips are 16 rows high, but of
// several members 64 columns wide: there stores take most of the time, and memory takes 256 neighbouring bytes faster
// than 128 (docs/kernels/pairwise-cuda.md).
template <int WIDTH>
struct Strip {
  static constexpr int kRows = 512 / WIDTH;
  i64 m, n0;          // of its first row, of the tile's first column
  u32 values;         // address of the strip
  u32 columns;        // of the tile's columns
  int column;         // its first one, in the tile
  MERCER_METHOD i64 n() const { return n0 + column; }
  MERCER_METHOD u32 place(int row, int at) const {
    return values + row * (WIDTH * 4) + ((at / 4 ^ ((row & 3) << 1 | (row >> 2 & 1))) << 4) + at % 4 * 4;
  }
};

template <int WIDTH>
MERCER_INLINE void load_col_slots(float (&slots)[COL_SLOTS + 1], const Strip<WIDTH>& strip, int column) {
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s)
    slots[s] = shared_float(strip.columns + ((POINT_PLANES + s) * PLANE_ROW + strip.column + column) * 4);
}

MERCER_INLINE OUT pair_value(const PairArguments& p, float acc, const float* rows, const float* cols,
                             const float* params, i64 m, i64 n) {
  REAL outputs[OUTPUTS];
  epilogue(outputs, &acc, rows, cols, params, (REAL)(m + p.i_offset), (REAL)(n + p.j_offset), (REAL)p.features);
  OUT value;
  convert(value, outputs[0]);
  return value;
}

// Values are stored, or taken from what is there: of a symmetric matrix on and above the diagonal alone.
MERCER_INLINE OUT stored(OUT before, OUT value) {
#if SUBTRACTS
  return before - value;
#else
  return value;
#endif
}
MERCER_INLINE bool mirrors(const PairArguments& p) { return !SUBTRACTS && p.symmetric; }

// Members of a batch: how many, and where they go.
MERCER_INLINE i64 member_count(const PairArguments& p) { return NUMBERS ? 1 : p.member_count; }
// Where there are registers, parameters of the next member are on their way meanwhile.
#define LOADS_AHEAD (KEEPS_PARAMS && !BRIEF)
MERCER_INLINE OUT* member_out(const PairArguments& p, i64 member) {
  return (OUT*)p.out + (NUMBERS ? 0 : batch_offset(p.members, p.member_out_step, member));
}
// Whether rows of every member start at multiples of four values.
MERCER_INLINE bool takes_packs(const PairArguments& p) {
  bool takes = p.out_col == 1 && p.out_row % 4 == 0 && (u64)p.out % (4 * sizeof(OUT)) == 0;
#pragma unroll 1
  for (int axis = 0; !NUMBERS && axis < p.members.count; ++axis) takes = takes && p.member_out_step[axis] % 4 == 0;
  return takes;
}

// All pairs of a strip are there and on one side of the diagonal; groups of four lie on multiples of their size. All
// loads come first, once for all members.
template <bool MIRROR, int WIDTH>
MERCER_INLINE void store_whole(const PairArguments& p, const Strip<WIDTH>& strip) {
  static_assert(!MIRROR || WIDTH == 32, "four lanes of four rows");
  constexpr int kRowLanes = WIDTH / 4;
  const int lane = threadIdx.x % 32;
  // The lane's first pair of four passes; four rows or columns follow one another in each.
  const int row = MIRROR ? lane % 4 * 4 : lane / kRowLanes, column = MIRROR ? lane / 4 : lane % kRowLanes * 4;
  constexpr int kPassRows = MIRROR ? 0 : 32 / kRowLanes, kPassColumns = MIRROR ? 8 : 0;
  constexpr int kRows = MIRROR, kColumns = !MIRROR;
  const i64 m = strip.m + row, n = strip.n() + column;
  const i64 place = MIRROR ? n * p.out_row + m : m * p.out_row + n;
  const i64 step = (MIRROR ? kPassColumns : kPassRows) * p.out_row;
  float values[4][4], rows[4][ROW_SLOTS + 1], cols[4][COL_SLOTS + 1];
#pragma unroll
  for (int pass = 0; pass < 4; ++pass) {
    load_row_slots(rows[pass], p, m + pass * (kPassRows + kRows));
    load_col_slots(cols[pass], strip, column + pass * (kPassColumns + kColumns));
    if (MIRROR) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        values[pass][c] = shared_float(strip.place(row + c, column + pass * kPassColumns));
    } else {
      shared_floats(values[pass], strip.place(row + pass * kPassRows, column));
    }
  }
  Params own, next;
  if (LOADS_AHEAD) own.load(p, 0);
#pragma unroll 1
  for (i64 member = 0; member < member_count(p); ++member) {
    if (LOADS_AHEAD && member + 1 < member_count(p)) next.load(p, member + 1);
    if (KEEPS_PARAMS && !LOADS_AHEAD) own.load(p, member);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, member);
    OUT* to = member_out(p, member) + place;
    Pack<OUT, 4> before[4] = {};
#pragma unroll
    for (int pass = 0; SUBTRACTS && pass < 4; ++pass) before[pass] = *(const Pack<OUT, 4>*)(to + pass * step);
#pragma unroll
    for (int pass = 0; pass < 4; ++pass, to += step) {
      Pack<OUT, 4> pack;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        pack.value[c] = stored(before[pass].value[c],
                               pair_value(p, values[pass][c], rows[MIRROR ? c : pass], cols[MIRROR ? pass : c], params,
                                          m + pass * kPassRows + c * kRows, n + pass * kPassColumns + c * kColumns));
      store_pack(to, pack);
    }
    if (LOADS_AHEAD) own = next;
  }
}

// Edges, the diagonal, any strides: a pair a lane.
template <int WIDTH>
MERCER_INLINE void store_part(const PairArguments& p, const Strip<WIDTH>& strip, const float* params, OUT* out) {
#pragma unroll 1
  for (int column = threadIdx.x % 32; column < WIDTH; column += 32) {
    const i64 n = strip.n() + column;
    if (n >= p.n) return;
    float rows[ROW_SLOTS + 1], cols[COL_SLOTS + 1];
    load_col_slots(cols, strip, column);
#pragma unroll 1
    for (int row = 0; row < strip.kRows; ++row) {
      const i64 m = strip.m + row;
      if (m >= p.m || (p.symmetric && n < m)) continue;
      load_row_slots(rows, p, m);
      const OUT value = pair_value(p, shared_float(strip.place(row, column)), rows, cols, params, m, n);
      OUT& pair = out[m * p.out_row + n * p.out_col];
      pair = stored(pair, value);
      if (mirrors(p) && n != m) out[n * p.out_row + m * p.out_col] = value;
    }
  }
}

template <int WIDTH>
MERCER_INLINE void store_strip(const PairArguments& p, const Strip<WIDTH>& strip) {
  const i64 n = strip.n();
  const bool whole = strip.m + strip.kRows <= p.m && n + WIDTH <= p.n && (!p.symmetric || n >= strip.m + strip.kRows);
  if (!LONG_EPILOGUE && whole && takes_packs(p)) {
    store_whole<false>(p, strip);
    if constexpr (WIDTH == 32)
      if (mirrors(p)) store_whole<true>(p, strip);
    return;
  }
#pragma unroll 1
  for (i64 member = 0; member < member_count(p); ++member)
    store_part(p, strip, member_params(p, member), member_out(p, member));
}

// Lists the marked pairs of 16 rows, row by row: lanes 4r … 4r + 3 hold rows r and r + 8. The masks are of 64 columns
// each. Bit b of a mask: of the first 32 columns in the upper half, of the last in the lower; with place = 15 - b % 16,
// column group place / 4 of eight, row r or (place & 2) r + 8, the even or (place & 1) odd one of the lane's columns.
#define SECOND_ROWS 0x33333333u
MERCER_INLINE i64 marked_column(i64 n, int bit) {
  const int place = 15 - bit % 16, lane = threadIdx.x % 32;
  return n + (bit < 16 ? 32 : 0) + place / 4 * 8 + lane % 4 * 2 + place % 2;
}
MERCER_INLINE i64 marked_row(i64 m, int bit) { return m + threadIdx.x % 32 / 4 + ((15 - bit % 16) & 2 ? 8 : 0); }

MERCER_INLINE void list_pairs(const PairArguments& p, const u32 (&masks)[REGIONS_N], i64 m, i64 n0) {
  const u32 area = area_of(p, m, n0);
  const i64 m_in = m % MERCER_AREA, n_in = n0 % MERCER_AREA;
  const int lane = threadIdx.x % 32;
  int count[2] = {0, 0};
#pragma unroll
  for (int region = 0; region < REGIONS_N; ++region) {
    count[0] += __popc(masks[region] & ~SECOND_ROWS);
    count[1] += __popc(masks[region] & SECOND_ROWS);
  }
  int end[2] = {count[0], count[1]};
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int first = __shfl_up_sync(0xffffffffu, end[0], offset), second = __shfl_up_sync(0xffffffffu, end[1], offset);
    if (lane >= offset) {
      end[0] += first;
      end[1] += second;
    }
  }
  const int firsts = __shfl_sync(0xffffffffu, end[0], 31), all = firsts + __shfl_sync(0xffffffffu, end[1], 31);
  u32 base = 0;
  if (lane == 0 && all > 0) base = atomicAdd(p.area_counts + area, (u32)all);
  base = __shfl_sync(0xffffffffu, base, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 to = base + (half ? firsts : 0) + end[half] - count[half];
#pragma unroll
    for (int region = 0; region < REGIONS_N; ++region)
#pragma unroll 1
      for (u32 left = masks[region] & (half ? SECOND_ROWS : ~SECOND_ROWS); left; left &= left - 1, ++to) {
        const int bit = __ffs(left) - 1;
        const u32 row = (u32)marked_row(m_in, bit), column = (u32)marked_column(n_in + region * 64, bit);
        if (to < p.area_capacity) p.area_pairs[(i64)area * p.area_capacity + to] = row << 16 | column;
      }
  }
}

// Where the marks of 16 rows are, of four in a region.
MERCER_INLINE u8* marks_of(const PairArguments& p, i64 m) {
  const i64 regions_n = (p.n + MERCER_REGION - 1) / MERCER_REGION;
  return (u8*)p.marks + m / MERCER_REGION * regions_n * 4 + m % MERCER_REGION / 16;
}

// Rows behind the last one may share its region.
MERCER_INLINE void unmark_strip(const PairArguments& p, i64 m, i64 n0) {
  if (m / MERCER_REGION * MERCER_REGION >= p.m || threadIdx.x % 32 != 0) return;
  u8* marks = marks_of(p, m);
  for (i64 n = n0; n < n0 + TILE_N && n < p.n; n += MERCER_REGION) marks[n / MERCER_REGION * 4] = 0;
}

// The pairs that cancel: listed, or left to the tile of their region where they are many.
MERCER_INLINE void mark_strip(const PairArguments& p, u32 (&masks)[REGIONS_N], i64 m, i64 n0) {
  const int lane = threadIdx.x % 32;
  u8* marks = marks_of(p, m);
  u32 any = 0;
#pragma unroll
  for (int region = 0; region < REGIONS_N; ++region) any |= masks[region];
  const bool marked = __any_sync(0xffffffffu, any != 0);
  bool lists = false;
#pragma unroll
  for (int region = 0; region < REGIONS_N; ++region) {
    const i64 n = n0 + region * 64;
    int mark = 0;
    if (marked) {
      // Only pairs that are there, on and above the diagonal where that is all.
      u32 kept = 0;
#pragma unroll 1
      for (u32 left = masks[region]; left; left &= left - 1) {
        const int bit = __ffs(left) - 1;
        const i64 row = marked_row(m, bit), column = marked_column(n, bit);
        if (row < p.m && column < p.n && (!p.symmetric || column >= row)) kept |= left & -left;
      }
      const int count = __reduce_add_sync(0xffffffffu, __popc(kept));
      mark = count == 0 ? 0 : count <= MOST_LISTED ? 1 : 2;
      masks[region] = mark == 1 ? kept : 0;
      lists = lists || mark == 1;
    }
    if (lane == 0 && n < p.n) marks[n / MERCER_REGION * 4] = (u8)mark;
  }
  if (lists && p.area_capacity > 0) list_pairs(p, masks, m, n0);  // else marks say enough (linear_field.cuh)
}

// Sums of a warp's 16 rows x 32 columns, or of eight of these rows and 64 columns, to shared memory; the signs of their
// tests, where they lie in a mask.
MERCER_INLINE u32 write_sums(const Strip<32>& strip, const float* sum, const PointNorm (&x)[2]) {
  const int lane = threadIdx.x % 32;
  float values[16];
  const u32 mask = sums_of_pairs(values, sum, x, strip.columns, strip.column);
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* const pair = values + j * 4 + h * 2;
      store_floats(strip.place(lane / 4 + 8 * h, j * 8 + lane % 4 * 2), pair[0], pair[1]);
    }
  return mask;
}
MERCER_INLINE u32 write_sums(const Strip<64>& strip, const float* sum, const PointNorm& x, int half) {
  const int lane = threadIdx.x % 32;
  float values[16];
  const u32 mask = sums_of_half(values, sum + 2 * half, x, strip.columns, strip.column);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    store_floats(strip.place(lane / 4, j * 8 + lane % 4 * 2), values[j * 2], values[j * 2 + 1]);
  return half ? mask : mask << 2;
}

// What becomes of a tile's sums: values are stored, pairs that cancel listed.
struct Consumer {
  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    if (m >= a.pairs.m) return unmark_strip(a.pairs, m, walk.n0);
    const u32 place = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    const bool wide = member_count(a.pairs) > 1 && !mirrors(a.pairs);
    u32 masks[REGIONS_N];
#pragma unroll
    for (int region = 0; region < REGIONS_N; ++region) {
      const float* const sums = sum + region * 32;
      masks[region] = 0;
#pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        if (wide) {
          const Strip<64> strip = {m + turn * 8, walk.n0, place, shared.columns, region * 64};
          masks[region] |= write_sums(strip, sums, x[turn], turn);
          __syncwarp();
          store_strip(a.pairs, strip);
        } else {
          const Strip<32> strip = {m, walk.n0, place, shared.columns, region * 64 + turn * 32};
          masks[region] = masks[region] << 16 | write_sums(strip, sums + turn * 16, x);
          __syncwarp();
          store_strip(a.pairs, strip);
        }
        __syncwarp();
      }
    }
    mark_strip(a.pairs, masks, m, walk.n0);
  }
};
