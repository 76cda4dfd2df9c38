/// \file
/// A strided view of somebody else's memory. Mercer never owns the arrays it reads or writes: they must live until the
/// call that takes the view returns; on CUDA, until the work that the call put into its stream is done.
///
/// Strides count elements, not bytes. Making a view checks nothing and never throws; the call that takes it checks.
///
/// \code
/// std::vector<double> table(100 * 8);
/// mercer::Tensor all = mercer::view(table.data(), {100, 8});                              // [100, 8], row-major
/// mercer::Tensor odd(table.data() + 8, mercer::Dtype::float64, {50, 8}, {16, 1});         // every second row
/// mercer::Tensor turned(table.data(), mercer::Dtype::float64, {8, 100}, {1, 8});          // the transpose
/// mercer::Tensor repeated(table.data(), mercer::Dtype::float64, {5, 100, 8}, {0, 8, 1});  // one matrix, five times
/// \endcode
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace mercer {

/// Element types. Points are float16, bfloat16, float32, float64, uint8, int8 or int32; int64 is for indices,
/// parameters and products of whole numbers (mercer/kron.h), boolean is known so that it can be refused by name.
enum class Dtype : std::uint8_t { float16, bfloat16, float32, float64, uint8, int64, boolean, int32, int8 };
inline constexpr int kDtypeCount = 9;  ///< how many there are

/// Bytes of one element.
std::size_t size_of(Dtype dtype);
/// "float32" and so on.
const char* name_of(Dtype dtype);
/// int32 or int64.
bool is_whole(Dtype dtype);
/// The type in which values of `dtype` are computed: float64 for float64, and for int32, whose values float32 does not
/// have; float32 for all others.
Dtype compute_type(Dtype dtype);
/// Whether points may be of this type.
bool is_of_points(Dtype dtype);
/// The names of all types that points may be of, for messages.
inline constexpr const char* kPointTypes = "float16, bfloat16, float32, float64, uint8, int8 or int32";

/// Memory of the host, or of an NVIDIA GPU.
enum class DeviceKind : std::uint8_t { cpu, cuda };
/// Where an array lies.
struct Device {
  DeviceKind kind = DeviceKind::cpu;  ///< memory of the host where nothing is said
  int index = 0;  ///< of CUDA devices, from 0, as the driver counts them
  bool operator==(const Device&) const = default;  ///< the same kind and index
  std::string to_text() const;  ///< "cpu", "cuda:0"
};

/// A view: element (i0, i1, …) lies at data + size_of(dtype) * sum_a i_a * strides[a].
/// Strides count elements; they may be zero (broadcast) or negative.
struct Tensor {
  void* data = nullptr;  ///< the element (0, 0, …); memory of inputs is never written
  Dtype dtype = Dtype::float32;  ///< the type of the elements
  std::vector<std::int64_t> shape;  ///< how many elements along each axis, from 0 on
  std::vector<std::int64_t> strides;  ///< how many elements lie between neighbours along each axis
  Device device = {};  ///< where the memory is

  Tensor() = default;  ///< no axes, no memory
  /// A view with the given strides (in elements).
  Tensor(void* data, Dtype dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides);
  /// A contiguous row-major view.
  Tensor(void* data, Dtype dtype, std::vector<std::int64_t> shape);

  int ndim() const { return static_cast<int>(shape.size()); }  ///< the number of axes
  /// Elements; 1 for no axes, 0 when an axis has none.
  std::int64_t count() const;
  /// "float32[3, 4]".
  std::string to_text() const;
};

/// The dtype of a C++ type. 16-bit floats have none: give their dtype to the constructor of Tensor.
template <class T>
constexpr Dtype dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, std::uint8_t> ||
                    std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::int32_t> ||
                    std::is_same_v<T, std::int64_t>,
                "Mercer's arrays hold float, double, std::uint8_t, std::int8_t, std::int32_t or std::int64_t");
  if constexpr (std::is_same_v<T, float>) return Dtype::float32;
  else if constexpr (std::is_same_v<T, double>) return Dtype::float64;
  else if constexpr (std::is_same_v<T, std::uint8_t>) return Dtype::uint8;
  else if constexpr (std::is_same_v<T, std::int8_t>) return Dtype::int8;
  else if constexpr (std::is_same_v<T, std::int32_t>) return Dtype::int32;
  else return Dtype::int64;
}

/// A contiguous row-major view of typed memory: `view(x.data(), {m, k})`. Inputs are never written, so memory that is
/// only read may be const.
template <class T>
Tensor view(const T* data, std::vector<std::int64_t> shape) {
  return Tensor(const_cast<std::remove_const_t<T>*>(data), dtype_of<std::remove_const_t<T>>(), std::move(shape));
}

}  // namespace mercer
