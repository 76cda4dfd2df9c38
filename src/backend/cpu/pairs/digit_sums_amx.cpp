// Squared differences from digits by AMX: four tiles of 16 x 16 sums of 32 bits, two of rows, two of columns.
#if defined(__AMX_INT8__)
#include <immintrin.h>

#include "backend/cpu/pairs/digit_sums.inc"
#else
#include "backend/cpu/pairs/digit_sums.h"
#endif

namespace mercer::cpu {

#if defined(__AMX_INT8__)
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// Threads are scheduled with less to save where tiles hold nothing.
class Tiles {
 public:
  Tiles() {
    static constexpr TileConfig kConfig;
    _tile_loadconfig(&kConfig);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// What turns the sums of a block into squared differences, a row at a time: between products, which another unit of
/// the core computes meanwhile.
class Finish {
 public:
  Finish(const DigitBlock& b, const std::int32_t* sums, std::int64_t block) : b_(b), sums_(sums), block_(block) {
    for (int half = 0; half < 2; ++half) {
      const std::int64_t column = block * kDigitBlock + half * 16;
      scales_[half] = _mm512_loadu_ps(b.z_numbers.scales + column);
      norms_[half] = _mm512_loadu_ps(b.z_numbers.norms + column);
      least_[half] = _mm512_loadu_ps(b.z_numbers.least + column);
    }
  }
  void rows(std::int64_t count) {
    for (const std::int64_t end = lesser(kDigitBlock, row_ + count); row_ < end; ++row_) {
      const __m512 scale = _mm512_set1_ps(b_.x_numbers.scales[row_] * 0x1p17f);
      const __m512 norm = _mm512_set1_ps(b_.x_numbers.norms[row_]), least = _mm512_set1_ps(b_.x_numbers.least[row_]);
      std::uint32_t marks = 0;
      for (int half = 0; half < 2; ++half) {
        const std::int32_t* const at = sums_ + row_ * kDigitBlock + half * 16;
        const auto sum = [&](int i) { return _mm512_cvtepi32_ps(_mm512_load_si512(at + i * kBlockSize)); };
        const __m512 last = _mm512_fmadd_ps(sum(3), _mm512_set1_ps(1.0f / 256), sum(2));
        const __m512 small = _mm512_fmadd_ps(sum(1), _mm512_set1_ps(256), last);
        const __m512 inner = _mm512_fmadd_ps(sum(0), _mm512_set1_ps(65536), small);
        const __m512 value = _mm512_fnmadd_ps(_mm512_mul_ps(scale, scales_[half]), inner,
                                              _mm512_add_ps(norm, norms_[half]));
        _mm512_storeu_ps(b_.out + row_ * b_.out_stride + block_ * kDigitBlock + half * 16, value);
        const __mmask16 low = _mm512_cmp_ps_mask(value, _mm512_add_ps(least, least_[half]), _CMP_LT_OQ);
        marks |= static_cast<std::uint32_t>(low) << (16 * half);
      }
      b_.doubtful[block_ * kDigitBlock + row_] = marks;
    }
  }

 private:
  const DigitBlock& b_;
  const std::int32_t* sums_;
  std::int64_t block_, row_ = 0;
  __m512 scales_[2], norms_[2], least_[2];
};

/// The sum of a block whose digits' places add up to `order`.
template <class Between>
void add_products(const DigitBlock& b, const std::int8_t* z, int order, std::int32_t* sums, const Between& between) {
  constexpr int kRow = 64, kBytes = kDigitBlock * 4, kHalf = 16;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = first_digit(order); d <= order - first_digit(order); ++d) {
    const std::int8_t* rows = tiles_of(b.x, b.steps, d, 0);
    const std::int8_t* cols = tiles_of(z, b.steps, order - d, 0);
    for (std::int64_t s = 0; s < b.steps; ++s, rows += 2 * kDigitTile, cols += 2 * kDigitTile) {
      _tile_loadd(4, rows, kRow);
      _tile_loadd(6, cols, kRow);
      _tile_loadd(5, rows + kDigitTile, kRow);
      _tile_loadd(7, cols + kDigitTile, kRow);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
      between();
    }
  }
  _tile_stored(0, sums, kBytes);
  _tile_stored(1, sums + kHalf, kBytes);
  _tile_stored(2, sums + kBlockSize / 2, kBytes);
  _tile_stored(3, sums + kBlockSize / 2 + kHalf, kBytes);
}

/// Brings the lines of a block's results into the cache, some rows at a time.
class Ahead {
 public:
  Ahead(const DigitBlock& b, std::int64_t block)
      : first_(b.ahead + block * kDigitBlock), stride_(b.ahead_stride),
        row_(b.ahead == nullptr || block == b.blocks ? kDigitBlock : 0) {}
  void rows(std::int64_t count) {
    constexpr int kLine = 16;
    for (const std::int64_t end = lesser(kDigitBlock, row_ + count); row_ < end; ++row_) {
      __builtin_prefetch(first_ + row_ * stride_, 1);
      __builtin_prefetch(first_ + row_ * stride_ + kLine, 1);
    }
  }

 private:
  const float* first_;
  std::int64_t stride_, row_;
};

void squares(const DigitBlock& b) {
  constexpr std::int64_t kProducts = 8;
  alignas(64) std::int32_t sums[2][kOrders][kBlockSize];
  const std::int64_t rows_at_once = (kDigitBlock + kProducts * b.steps - 1) / (kProducts * b.steps);
  const Tiles tiles;
  for (std::int64_t block = 0; block <= b.blocks; ++block) {
    const bool is_first = block == 0;
    Finish finish(b, sums[(block + 1) % 2][0], is_first ? 0 : block - 1);
    Ahead ahead(b, block);
    const auto between = [&] {
      ahead.rows(rows_at_once);
      if (!is_first) finish.rows(rows_at_once);
    };
    const std::int8_t* const z = b.z + block * digit_bytes(b.steps);
    for (int i = 0; i < kOrders && block < b.blocks; ++i)
      add_products(b, z, i, sums[block % 2][i], between);
    if (!is_first) finish.rows(kDigitBlock);
  }
}

}  // namespace

const DigitKernels& digit_kernels_amx() {
  static constexpr DigitKernels kKernels{pack, squares};
  return kKernels;
}
#else
const DigitKernels& digit_kernels_amx() { return digit_kernels_baseline(); }
#endif

}  // namespace mercer::cpu
