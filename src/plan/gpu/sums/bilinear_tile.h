// Tiles of sums that products of matrices compute (plan/forms/bilinear.h), and when they pay
// (docs/kernels/bilinear.md).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "mercer/device.h"

namespace mercer::plan {

struct Costs;

/// What products with many columns of v take: two pieces of tf32, or of 16 bits, with the points' norms after them
/// where values are powers of two that come from products.
enum class VPieces : std::uint8_t { floats, floats_and_norms, halves, halves_and_norms };

/// Tiles of the product on tensor cores (kernels/cuda/gemm/bilinear_tile.cuh, bilinear_warps.cuh): 128 rows and so many
/// columns a block.
struct BilinearTile {
  int columns = 0;      // 0: the call does not run on tensor cores
  int stages = 5, cluster = 2;
  int blocks = 1;       // of a multiprocessor at once
  int brief = 0;        // units of 32 features where that is a chunk, which needs no promotion: 1 or 2
  bool single = false;  // high pieces alone
  bool resident = false;  // x of a range of n stays in shared memory
  int wide = 0;         // columns of v by products of matrices; 0: few of them, otherwise
  int wide_stages = 0;  // of 32 points of v
  bool of_values = false;  // few features: values are computed pair by pair (kernels/cuda/gemm/wide_tile.cuh)
  bool by_warps = false;  // by mma.sync; else by wgmma, of compute capability 9.0 alone
  bool own_scales = false;  // every column of the product has one; else 32 of them, a block of the image, share it
  bool spreads = false;  // squares of values times shares are added up too (kernels/cuda/gradient/rank_field.cuh)
  int side_sums = 0;       // sums of so many more values
  int extra = 0;        // columns of v in addition to `wide`, of one more value, a multiple of 8; 0: none
  int weight_units = 0;  // of 32 features, of products that values are weighed with there
  bool weight_matrix = false;  // or the values of a matrix
  bool areas = false;    // stored pairs that cancel: those of areas that have many together (repair_areas.cuh)
  bool keeps = false;    // products with very many columns: values are stored (kernels/cuda/gemm/bilinear_kept.cuh)
  /// A tile's operands fill the ring once: the warp that is the last to have read them asks for the next tile's.
  bool last_feeds = false;
  static constexpr int kRows = 128;

  explicit operator bool() const { return columns > 0; }
  /// Bytes of 32 points of v in shared memory. Halves share a power of two a column. Two blocks of a cluster copy
  /// as many chunks of 16 bytes each.
  int v_bytes(VPieces pieces) const {
    constexpr int kNorms = 160;
    switch (pieces) {
      case VPieces::floats: return (wide + extra) * 256;
      case VPieces::floats_and_norms: return wide * 256 + kNorms;
      case VPieces::halves: return wide * 132;
      default: return wide * 132 + kNorms;
    }
  }
  /// Bytes of shared memory, with so many values a column of the epilogue; in addition those of v, where it is
  /// multiplied with, or of features, where pairs are computed one by one.
  std::int64_t shared_bytes(int col_slots, int product_columns = 0) const;
  /// Two warpgroups that multiply and, but for that, a warp that feeds; a block alone has a warpgroup for it, whose
  /// registers go to the others. By warps all do both.
  int threads() const {
    if (by_warps) return of_values ? 128 : 256;
    return blocks == 1 ? 384 : last_feeds ? 256 : 288;
  }
  /// The tile by warps of a call that has this one, with as many stages as fit; an empty one where none does.
  BilinearTile of_warps(int col_slots, int product_columns, std::int64_t shared_per_block) const;
  bool operator==(const BilinearTile&) const = default;
  auto parts() const {
    return std::tie(columns, stages, cluster, blocks, brief, single, resident, wide, wide_stages, of_values, by_warps,
                    own_scales, spreads, side_sums, extra, weight_units, weight_matrix, areas, keeps, last_feeds);
  }
  std::string to_text() const;
};

/// Compute capability whose tensor cores take products of warpgroups, which it alone has.
inline constexpr int kOfWarpgroups = 90;

/// Pairs that cancel are listed by areas of so many rows and columns (kernels/cuda/common/areas.cuh).
inline constexpr std::int64_t kArea = 384;

/// The tile for a call of these sizes; an empty one where tensor cores do not pay or `precision` forbids them.
/// `rows`: of m that are stored at once, 0 for all.
BilinearTile bilinear_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision, int multiprocessors,
                           const Costs& costs, std::int64_t rows = 0);

/// Microseconds of a call with this tile, by waves: products, epilogue and start of a tile.
double bilinear_time(const BilinearTile& tile, std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                     const Costs& costs);

/// The tile that makes the values of a product with v that stores them.
BilinearTile kept_values_tile(const BilinearTile& product);

/// Columns of v that one pass takes at most: without products of warpgroups, and with them; where that saves passes
/// enough, with half as many columns of the matrix in a tile.
inline constexpr int kFewColumns = 16, kWideColumns = 104, kMostWideColumns = 128;

/// Ranges of the features, each by blocks of its own, by which few tiles (of a cluster each) fill a device.
int feature_ranges(const BilinearTile& tile, std::int64_t tiles, std::int64_t k, int multiprocessors,
                   const Costs& costs);

/// As `bilinear_tile`, for folds over n, which store no pairs: products with so many columns of v, or none.
BilinearTile bilinear_fold_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                                Precision precision, const Costs& costs);

/// As `bilinear_tile`, for nearest neighbours, whose candidates are found among the tiles' values.
BilinearTile bilinear_nearest_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision,
                                   const Costs& costs);

/// Few features, and columns of v from which their products run on tensor cores.
inline constexpr int kFewFeatures = 16, kLeastWideColumns = 5;
/// The tile for a product of so few features; empty where it does not pay.
BilinearTile wide_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns, Precision precision,
                       const Costs& costs);

}  // namespace mercer::plan
