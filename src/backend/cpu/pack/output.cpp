#include "backend/cpu/pack/output.h"

#include <cstring>

namespace mercer::cpu {

template <class T>
void write_block(const T* block, std::int64_t block_stride, std::int64_t rows, std::int64_t cols,
                 const OutputMatrix& out, std::int64_t row0, std::int64_t col0) {
  const bool copies = out.dtype == dtype_of<T>() && out.col_stride == 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t base = (row0 + r) * out.row_stride + col0 * out.col_stride;
    const T* row = block + r * block_stride;
    if (copies) {
      std::memcpy(static_cast<T*>(out.data) + base, row, cols * sizeof(T));
      continue;
    }
    for (std::int64_t c = 0; c < cols; ++c) store_element<T>(out, base + c * out.col_stride, row[c]);
  }
}

template void write_block<float>(const float*, std::int64_t, std::int64_t, std::int64_t, const OutputMatrix&,
                                 std::int64_t, std::int64_t);
template void write_block<double>(const double*, std::int64_t, std::int64_t, std::int64_t, const OutputMatrix&,
                                  std::int64_t, std::int64_t);

}  // namespace mercer::cpu
