// A strided view of somebody else's memory. Mercer never owns the arrays it reads or writes.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace mercer {

enum class Dtype : std::uint8_t { float16, bfloat16, float32, float64, uint8, int64, boolean };

/// Bytes of one element.
std::size_t size_of(Dtype dtype);
/// "float32" and so on.
const char* name_of(Dtype dtype);
/// The type in which values of `dtype` are computed: float64 for float64, float32 for all others.
Dtype compute_type(Dtype dtype);

/// A view: element (i0, i1, …) lies at data + size_of(dtype) * sum_a i_a * strides[a].
/// Strides count elements; they may be zero (broadcast) or negative.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  Tensor() = default;
  /// A view with the given strides (in elements).
  Tensor(void* data, Dtype dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides);
  /// A contiguous row-major view.
  Tensor(void* data, Dtype dtype, std::vector<std::int64_t> shape);

  int ndim() const { return static_cast<int>(shape.size()); }
  std::int64_t count() const;
  /// "float32[3, 4]".
  std::string to_text() const;
};

template <class T>
constexpr Dtype dtype_of() {
  if constexpr (sizeof(T) == 8 && static_cast<T>(0.5) != T(0)) return Dtype::float64;
  else if constexpr (sizeof(T) == 4) return Dtype::float32;
  else if constexpr (sizeof(T) == 8) return Dtype::int64;
  else return Dtype::uint8;
}

/// A contiguous row-major view of typed memory: `view(x.data(), {m, k})`.
template <class T>
Tensor view(const T* data, std::vector<std::int64_t> shape) {
  return Tensor(const_cast<std::remove_const_t<T>*>(data), dtype_of<std::remove_const_t<T>>(), std::move(shape));
}

}  // namespace mercer
