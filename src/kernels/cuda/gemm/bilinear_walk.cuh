// The order in which clusters of blocks take the tiles of a product (bilinear_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define TILE_M 128

// The columns of candidates are not in their order (candidates.cuh).
template <bool OF_CANDIDATES>
struct TileColumns {
  MERCER_METHOD TileColumns(const BilinearArguments&) {}
};

// Tiles of a cluster, `group` strips of m together through n: those that run at the same time share their operands in
// the second-level cache.
template <bool OF_CANDIDATES>
struct TileWalk : TileColumns<OF_CANDIDATES> {
  int strips, columns, group, step, left, first;  // left: tiles from the strips at `first` on, to the wanted one
  int ranges, range;
  i64 m0, n0;
  bool symmetric;
  MERCER_METHOD TileWalk(const BilinearArguments& a) : TileColumns<OF_CANDIDATES>(a) {
    strips = a.end_strip;
    if constexpr (OF_CANDIDATES)
      columns = this->count(a);
    else
      columns = (int)((a.pairs.n + TILE_N - 1) / TILE_N);
    group = a.group;
    symmetric = a.pairs.symmetric != 0;
    ranges = JOINS_RANGES ? a.ranges : 1;
    step = gridDim.x / CLUSTER;
    left = (int)(blockIdx.x / CLUSTER) - step;
    first = a.first_strip;
  }
  // Tiles below the diagonal of a symmetric matrix are not counted, but for those next to it.
  MERCER_METHOD bool next() {
    left += step;
#pragma unroll 1
    for (; first < strips; first += group) {
      const int rows = strips - first < group ? strips - first : group;
      const int begin = symmetric ? (int)((i64)first * (TILE_M * CLUSTER) / TILE_N) : 0;
      const int tiles = rows * (columns - begin) * (JOINS_RANGES ? ranges : 1);
      if (left < tiles) {
        const int tile = JOINS_RANGES ? left / ranges : left;
        range = JOINS_RANGES ? left % ranges : 0;
        m0 = (i64)(first + tile % rows) * (TILE_M * CLUSTER);
        if constexpr (OF_CANDIDATES)
          n0 = this->first_of(tile / rows);
        else
          n0 = (i64)(begin + tile / rows) * TILE_N;
        return true;
      }
      left -= tiles;
    }
    return false;
  }
  MERCER_METHOD bool is_below() const { return symmetric && n0 + TILE_N <= m0; }
  // The first one of so many units in a range, and its end.
  MERCER_METHOD int first_unit(int units) const { return JOINS_RANGES ? (int)((i64)units * range / ranges) : 0; }
  MERCER_METHOD int end_unit(int units) const {
    return JOINS_RANGES ? (int)((i64)units * (range + 1) / ranges) : units;
  }
};

// Ranges of n one after the other, each with the tiles of a strip of m: what a range adds up stays with its block.
struct RangeWalk {
  int strips, tiles, splits, step, unit, split, first, tile, end;
  i64 m0, n0;
  MERCER_METHOD RangeWalk(const BilinearArguments& a) {
    strips = (int)((a.pairs.m + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER));
    tiles = (int)((a.pairs.n + TILE_N - 1) / TILE_N);
    splits = a.pairs.splits;
    step = gridDim.x / CLUSTER;
    unit = (int)(blockIdx.x / CLUSTER) - step;
    tile = end = 0;
  }
  MERCER_METHOD bool next() {
    if (tile == end) {
      unit += step;
      if (unit >= strips * splits) return false;
      split = unit / strips;
      m0 = (i64)(unit % strips) * (TILE_M * CLUSTER);
      first = tile = (int)((i64)tiles * split / splits);
      end = (int)((i64)tiles * (split + 1) / splits);
    }
    n0 = (i64)tile++ * TILE_N;
    return true;
  }
  MERCER_METHOD bool starts_range() const { return tile == first + 1; }
  MERCER_METHOD bool ends_range() const { return tile == end; }
  // So many tiles of a range are added up before they go to the range's sums: of equal addends, 256 additions would err
  // by 4e-6. A tile of wide products is four of them.
  static constexpr int kTilesOfSum = WIDE ? 24 : 32;
  MERCER_METHOD bool starts_sum() const { return (tile - 1 - first) % kTilesOfSum == 0; }
  MERCER_METHOD bool ends_sum() const { return tile == end || (tile - first) % kTilesOfSum == 0; }
  MERCER_METHOD bool is_first_sum() const { return tile - first <= kTilesOfSum; }
  MERCER_METHOD bool is_below() const { return false; }
  MERCER_METHOD int first_unit(int) const { return 0; }
  MERCER_METHOD int end_unit(int units) const { return units; }
};

using Walk = Either<CONSUMER == 0 || CONSUMER == 3, TileWalk<CONSUMER == 3>, RangeWalk>;
