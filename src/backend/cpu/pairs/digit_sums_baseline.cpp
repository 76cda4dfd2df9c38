// Squared differences from digits by plain loops over the tiles of AMX, for processors without it: in tests.
#include "backend/cpu/pairs/digit_sums.inc"

namespace mercer::cpu {
namespace {

/// A tile of rows times one of columns: [16][16] sums, rows `stride` apart.
void multiply_tiles(const std::int8_t* x, const std::int8_t* z, std::int32_t* sums, std::int64_t stride) {
  constexpr int kSide = 16, kGroup = 4;
  for (int m = 0; m < kSide; ++m)
    for (int g = 0; g < kSide; ++g)
      for (int n = 0; n < kSide; ++n)
        for (int i = 0; i < kGroup; ++i)
          sums[m * stride + n] += std::int32_t{x[m * kDigitStep + g * kGroup + i]} * z[g * kDigitStep + n * kGroup + i];
}

void add_products(const DigitBlock& b, const std::int8_t* z, int order, std::int32_t* sums) {
  std::memset(sums, 0, kBlockSize * sizeof(std::int32_t));
  for (std::int64_t s = 0; s < b.steps; ++s)
    for (int d = first_digit(order); d <= order - first_digit(order); ++d) {
      const std::int8_t* const rows = tiles_of(b.x, b.steps, d, s);
      const std::int8_t* const cols = tiles_of(z, b.steps, order - d, s);
      for (int half = 0; half < 4; ++half)
        multiply_tiles(rows + half / 2 * kDigitTile, cols + half % 2 * kDigitTile,
                       sums + half / 2 * (kBlockSize / 2) + half % 2 * (kDigitBlock / 2), kDigitBlock);
    }
}

void squares(const DigitBlock& b) {
  std::int32_t sums[kOrders][kBlockSize];
  for (std::int64_t block = 0; block < b.blocks; ++block) {
    for (int i = 0; i < kOrders; ++i) add_products(b, b.z + block * digit_bytes(b.steps), i, sums[i]);
    for (std::int64_t r = 0; r < kDigitBlock; ++r) {
      std::uint32_t marks = 0;
      for (std::int64_t c = 0; c < kDigitBlock; ++c) {
        const std::int64_t at = r * kDigitBlock + c, column = block * kDigitBlock + c;
        const float inner = static_cast<float>(sums[0][at]) * 65536 +
                            (static_cast<float>(sums[1][at]) * 256 +
                             (static_cast<float>(sums[3][at]) / 256 + static_cast<float>(sums[2][at])));
        const float both = b.x_numbers.scales[r] * 0x1p17f * b.z_numbers.scales[column];
        const float value = b.x_numbers.norms[r] + b.z_numbers.norms[column] - both * inner;
        b.out[r * b.out_stride + column] = value;
        if (value < b.x_numbers.least[r] + b.z_numbers.least[column]) marks |= std::uint32_t{1} << c;
      }
      b.doubtful[block * kDigitBlock + r] = marks;
    }
  }
}

}  // namespace

const DigitKernels& digit_kernels_baseline() {
  static constexpr DigitKernels kKernels{pack, squares};
  return kKernels;
}

}  // namespace mercer::cpu
