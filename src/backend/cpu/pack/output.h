// Strided outputs of any float dtype.
#pragma once

#include <cstdint>

#include "core/half.h"
#include "mercer/tensor.h"

namespace mercer::cpu {

/// A strided matrix to write.
struct OutputMatrix {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t row_stride = 0, col_stride = 0;  // elements
};

template <class T>
void store_element(const OutputMatrix& out, std::int64_t index, T value) {
  const auto narrow = static_cast<float>(value);
  switch (out.dtype) {
    case Dtype::float16: static_cast<std::uint16_t*>(out.data)[index] = half_from_float(narrow); break;
    case Dtype::bfloat16: static_cast<std::uint16_t*>(out.data)[index] = bfloat16_from_float(narrow); break;
    case Dtype::float64: static_cast<double*>(out.data)[index] = static_cast<double>(value); break;
    default: static_cast<float*>(out.data)[index] = narrow; break;
  }
}

/// Writes a block [rows][block_stride] of the computing type to the rows and columns from (row0, col0) on.
template <class T>
void write_block(const T* block, std::int64_t block_stride, std::int64_t rows, std::int64_t cols,
                 const OutputMatrix& out, std::int64_t row0, std::int64_t col0);

}  // namespace mercer::cpu
