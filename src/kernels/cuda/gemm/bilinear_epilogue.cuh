// From the sums of a tile to its values, and the pairs that cancel (bilinear_tile.cuh).
//
// A lane has two of a warp's 16 rows, and of each 16 columns four neighbours (own_row, own_column). Whole tiles of one
// member go to memory as lanes have them, four lanes 64 bytes of a row. With several members, stores take most of the
// time, and memory takes 256 neighbouring bytes faster: 8 rows x 64 columns at a time pass through the warp's part of
// shared memory. So do strips of 16 rows x 32 columns where there are edges, any strides, or a half below the diagonal.
#pragma once

#include "common/areas.cuh"
#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_walk.cuh"

struct Strip {
  static constexpr int kRows = 16, kColumns = 32;
  i64 m, n0;          // of its first row, of the tile's first column
  u32 values;         // address of the warp's part
  u32 columns;        // of the tile's columns
  int column;         // its first one, in the tile
  MERCER_METHOD i64 n() const { return n0 + column; }
  // 16-byte chunk c of row r lies where neither two rows of four lanes collide nor a column's rows 4 i + c.
  MERCER_METHOD u32 place(int row, int at) const {
    return values + row * (kColumns * 4) + ((at / 4 ^ row / 4 << 1 ^ (row & 1) << 2) << 4) + at % 4 * 4;
  }
};

MERCER_INLINE void load_col_slots(float (&slots)[COL_SLOTS + 1], const Strip& strip, int column) {
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s)
    slots[s] = shared_float(strip.columns + ((POINT_PLANES + s) * PLANE_ROW + strip.column + column) * 4);
}

MERCER_INLINE OUT pair_value(const PairArguments& p, float acc, const float* rows, const float* cols,
                             const float* params, i64 m, i64 n) {
  REAL outputs[OUTPUTS];
  epilogue(outputs, &acc, rows, cols, params, (REAL)(m + p.x.offset), (REAL)(n + p.z.offset), (REAL)p.features);
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
MERCER_INLINE i64 member_count(const PairArguments& p) { return NUMBERS ? 1 : p.members.count; }
// Where there are registers, parameters of the next member are on their way meanwhile.
#define LOADS_AHEAD (KEEPS_PARAMS && !BRIEF)
MERCER_INLINE OUT* member_out(const PairArguments& p, i64 member) {
  return (OUT*)p.out.data + (NUMBERS ? 0 : batch_offset(p.members.axes, p.members.out_step, member));
}
// Whether rows of every member start at multiples of four values.
MERCER_INLINE bool takes_packs(const PairArguments& p) {
  bool takes = p.out.column == 1 && p.out.row % 4 == 0 && (u64)p.out.data % (4 * sizeof(OUT)) == 0;
#pragma unroll 1
  for (int axis = 0; !NUMBERS && axis < p.members.axes.count; ++axis)
    takes = takes && p.members.out_step[axis] % 4 == 0;
  return takes;
}

// Four packs of four pairs that a lane stores, and which rows and columns of a strip they have. Pack i lies
// `row_step(i)` rows and `column_step(i)` columns after the first one. Its own, ...
struct OwnPacks {
  static constexpr bool kMirror = false;
  static constexpr int kRows = 2, kColumns = 8;
  MERCER_METHOD int row(int i) const { return own_row(i); }
  MERCER_METHOD int column(int i) const { return own_column(i / 2) + i % 2; }
  static MERCER_METHOD int row_of(int pack, int) { return pack / 2; }
  static MERCER_METHOD int column_of(int pack, int c) { return pack % 2 * 4 + c; }
  static MERCER_METHOD int row_step(int pack) { return pack / 2 * 2; }
  static MERCER_METHOD int column_step(int pack) { return pack % 2 * 16; }
};
// ... of 64 columns and the rows `half`, ...
struct WidePacks {
  static constexpr bool kMirror = false;
  static constexpr int kRows = 4, kColumns = 4;
  int half;
  MERCER_METHOD int row(int i) const { return 4 * i + threadIdx.x % 32 / 16 + 2 * half; }
  MERCER_METHOD int column(int i) const { return threadIdx.x % 16 * 4 + i; }
  static MERCER_METHOD int row_of(int pack, int) { return pack; }
  static MERCER_METHOD int column_of(int, int c) { return c; }
  static MERCER_METHOD int row_step(int pack) { return 4 * pack; }
  static MERCER_METHOD int column_step(int) { return 0; }
};
// ... or of the mirror image, where neighbours are rows.
struct MirrorPacks {
  static constexpr bool kMirror = true;
  static constexpr int kRows = 4, kColumns = 4;
  MERCER_METHOD int row(int i) const { return threadIdx.x % 4 * 4 + i; }
  MERCER_METHOD int column(int i) const { return threadIdx.x % 32 / 4 + 8 * i; }
  static MERCER_METHOD int row_of(int, int c) { return c; }
  static MERCER_METHOD int column_of(int pack, int) { return pack; }
  static MERCER_METHOD int row_step(int) { return 0; }
  static MERCER_METHOD int column_step(int pack) { return 8 * pack; }
};

// All pairs are there and on one side of the diagonal; packs lie on multiples of their size. Slots are loaded first,
// once for all members.
template <class Packs>
MERCER_INLINE void store_packs(const PairArguments& p, const Strip& strip, const Packs& packs,
                               const float (&sums)[4][4]) {
  float rows[Packs::kRows][ROW_SLOTS + 1], cols[Packs::kColumns][COL_SLOTS + 1];
#pragma unroll
  for (int i = 0; i < Packs::kRows; ++i) load_row_slots(rows[i], p, strip.m + packs.row(i));
#pragma unroll
  for (int i = 0; i < Packs::kColumns; ++i) load_col_slots(cols[i], strip, packs.column(i));
  const i64 m = strip.m + packs.row(0), n = strip.n() + packs.column(0);
  const i64 first = Packs::kMirror ? n * p.out.row + m : m * p.out.row + n;
  const auto behind = [&](int i) {
    const i64 row = packs.row_step(i), column = packs.column_step(i);
    return Packs::kMirror ? column * p.out.row + row : row * p.out.row + column;
  };
  Params own, next;
  if (LOADS_AHEAD) own.load(p, 0);
#pragma unroll 1
  for (i64 member = 0; member < member_count(p); ++member) {
    if (LOADS_AHEAD && member + 1 < member_count(p)) next.load(p, member + 1);
    if (KEEPS_PARAMS && !LOADS_AHEAD) own.load(p, member);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, member);
    OUT* const to = member_out(p, member) + first;
    Pack<OUT, 4> before[4] = {};
#pragma unroll
    for (int i = 0; SUBTRACTS && i < 4; ++i) before[i] = *(const Pack<OUT, 4>*)(to + behind(i));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pack<OUT, 4> pack;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = packs.row_of(i, c), column = packs.column_of(i, c);
        pack.value[c] = stored(before[i].value[c],
                               pair_value(p, sums[i][c], rows[row], cols[column], params, strip.m + packs.row(row),
                                          strip.n() + packs.column(column)));
      }
      store_pack(to + behind(i), pack);
    }
    if (LOADS_AHEAD) own = next;
  }
}

// Edges, the diagonal, any strides: a column a lane.
MERCER_INLINE void store_part(const PairArguments& p, const Strip& strip, const float* params, OUT* out) {
  const int column = threadIdx.x % 32;
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
    OUT& pair = out[m * p.out.row + n * p.out.column];
    pair = stored(pair, value);
    if (mirrors(p) && n != m) out[n * p.out.row + m * p.out.column] = value;
  }
}

// A strip of a tile with edges, any strides or a mirror image: what goes as it is, and the rest through shared memory.
MERCER_INLINE void store_strip(const PairArguments& p, const Strip& strip, float (&sums)[4][4], bool aligned) {
  const OwnPacks own{};
  const MirrorPacks mirror{};
  const bool packs = !MERCER_QUICK && aligned && strip.m + strip.kRows <= p.m && strip.n() + strip.kColumns <= p.n &&
                     (!p.symmetric || strip.n() >= strip.m + strip.kRows);
  if (packs) store_packs(p, strip, own, sums);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_floats(strip.place(own.row(i / 2), own.column(i % 2 * 4)), sums[i]);
  __syncwarp();
  if (packs && mirrors(p)) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][c] = shared_float(strip.place(mirror.row(c), mirror.column(i)));
    store_packs(p, strip, mirror, sums);
  } else if (!packs) {
#pragma unroll 1
    for (i64 member = 0; member < member_count(p); ++member)
      store_part(p, strip, member_params(p, member), member_out(p, member));
  }
  __syncwarp();
}

// Stores of all to one place follow one another: most see that it was said.
MERCER_INLINE void want_panels(const PairArguments& p) {
  if (p.split.state->wants_panels == 0) p.split.state->wants_panels = 1;
}

// Lists the marked pairs of 16 rows, row by row: lanes 4r … 4r + 3 hold two of them. The masks are of 64 columns each.
// Bit b of a mask: of the first 32 columns in the upper half, of the last in the lower; with place = 15 - b % 16, of
// these columns own_column(place / 2 % 4), and the one after it where place is odd, in row own_row(place / 8).
#define SECOND_ROWS 0x00ff00ffu
MERCER_INLINE i64 marked_column(i64 n, int bit) {
  const int place = 15 - bit % 16;
  return n + (bit < 16 ? 32 : 0) + own_column(place / 2 % 4) + place % 2;
}
MERCER_INLINE i64 marked_row(i64 m, int bit) { return m + own_row((15 - bit % 16) / 8); }

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
  if (lane == 0 && all > 0) base = atomicAdd(p.split.area_counts + area, (u32)all);
  if (lane == 0 && base + all > p.split.area_capacity) want_panels(p);
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
        if (to < p.split.area_capacity) p.split.area_pairs[(i64)area * p.split.area_capacity + to] = row << 16 | column;
      }
  }
}

// Where the marks of 16 rows are, of four in a region.
MERCER_INLINE u8* marks_of(const PairArguments& p, i64 m) {
  const i64 regions_n = (p.n + MERCER_REGION - 1) / MERCER_REGION;
  return (u8*)p.split.marks + m / MERCER_REGION * regions_n * 4 + m % MERCER_REGION / 16;
}

// Rows after the last one may share its region.
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
      if (lane == 0 && (mark == 2 || (!SQUARES && mark == 1))) want_panels(p);  // repairs of squares read rows
      masks[region] = mark == 1 ? kept : 0;
      lists = lists || mark == 1;
    }
    if (lane == 0 && n < p.n) marks[n / MERCER_REGION * 4] = (u8)mark;
  }
  // Without room for pairs the norms of rows tell (linear_field.cuh).
  if (lists && p.split.area_capacity > 0) list_pairs(p, masks, m, n0);
}

// The packs of 32 columns of row h of a lane, and after the bits of `mask` the signs of their tests.
MERCER_INLINE void sums_of_row(float (&first)[4], float (&second)[4], u32& mask, const float* sum, int h,
                               const PointNorm& x, const ColumnNorms& z) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float test;
    (i < 4 ? first : second)[i % 4] = pair_sum(sum[i / 2 * 4 + h * 2 + i % 2], x, z.at(i / 2, i % 2), test);
    mask = __funnelshift_l(bits_of(test), mask, 1);
  }
}
MERCER_INLINE u32 sums_of_strip(float (&sums)[4][4], const float* sum, const PointNorm (&x)[2], const Strip& strip) {
  const ColumnNorms z(strip.columns, strip.column);
  u32 mask = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) sums_of_row(sums[2 * h], sums[2 * h + 1], mask, sum, h, x[h], z);
  return mask;
}

// 64 columns of a tile of several members.
MERCER_INLINE u32 store_wide(const PairArguments& p, const Strip& strip, const float* sum, const PointNorm (&x)[2]) {
  const int lane = threadIdx.x % 32, row = lane / 4;
  const auto place = [&](int r, int at) { return strip.values + r * 256 + ((at / 4 ^ (r & 1) << 2) << 4); };
  u32 masks[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sums[4][4];
#pragma unroll
    for (int part = 0; part < 2; ++part)
      sums_of_row(sums[2 * part], sums[2 * part + 1], masks[h], sum + part * 16, h, x[h],
                  ColumnNorms(strip.columns, strip.column + part * 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) store_floats(place(row, 16 * i + lane % 4 * 4), sums[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) shared_floats(sums[i], place(2 * i + lane / 16, lane % 16 * 4));
    store_packs(p, strip, WidePacks{h}, sums);
    __syncwarp();
  }
  const u32 first = masks[0], second = masks[1];
  return (first & 0xff00u) << 16 | (second & 0xff00u) << 8 | (first & 0xffu) << 8 | (second & 0xffu);
}

// What becomes of a tile's sums: values are stored, pairs that cancel listed.
struct Consumer {
  typedef RowNorms Rows;
  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}
  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const PairArguments& p = a.pairs;
    if (m >= p.m) return unmark_strip(p, m, walk.n0);
    Strip strip = {m, walk.n0, shared.values + threadIdx.x / 32 * VALUES_BYTES, shared.columns, 0};
    const bool aligned = !LONG_EPILOGUE && takes_packs(p);
    const bool whole = !MERCER_QUICK && aligned && !mirrors(p) && m + strip.kRows <= p.m && walk.n0 + TILE_N <= p.n &&
                       (!p.symmetric || walk.n0 >= m + strip.kRows);
    u32 masks[REGIONS_N] = {};
    if (whole && member_count(p) == 1) {
#pragma unroll
      for (int part = 0; part < TILE_N / 32; ++part) {
        strip.column = part * 32;
        float sums[4][4];
        masks[part / 2] = masks[part / 2] << 16 | sums_of_strip(sums, sum + part * 16, x, strip);
        store_packs(p, strip, OwnPacks(), sums);
      }
    } else if (whole) {
#pragma unroll
      for (int region = 0; region < REGIONS_N; ++region) {
        strip.column = region * 64;
        masks[region] = store_wide(p, strip, sum + region * 32, x);
      }
    } else {
      // A loop, in which sums move up: of what runs seldom the text shall be short.
#pragma unroll 1
      for (; strip.column < TILE_N; strip.column += 32) {
        float sums[4][4];
        const u32 mask = sums_of_strip(sums, sum, x, strip);
        store_strip(p, strip, sums, aligned);
#pragma unroll
        for (int i = 0; i + 16 < SUMS; ++i) sum[i] = sum[i + 16];
#pragma unroll
        for (int region = 0; region < REGIONS_N; ++region)
          masks[region] = __funnelshift_l(region + 1 < REGIONS_N ? masks[region + 1] : mask << 16, masks[region], 16);
      }
    }
    mark_strip(p, masks, m, walk.n0);
  }
};
