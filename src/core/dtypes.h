// The element types, a row each: all that differs between them but for how their elements are read and written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mercer/tensor.h"

namespace mercer {

struct DtypeRow {
  const char* name;
  std::size_t size;         // bytes
  Dtype computing;          // the type in which values are computed
  bool of_points;           // points may be of it
  char format;              // of the module struct and of buffers; 0: it has none
  char interface;           // the kind in the array interface, the size after it: "f4"; 0: it has none
  std::uint8_t dlpack;      // DLDataTypeCode
  std::int8_t xla;          // xla::PrimitiveType
  const char* device_text;  // its elements in device text; null: they have none there
};

// The rows are in the order of the enumeration.
inline constexpr DtypeRow kDtypes[kDtypeCount] = {
    {"float16", 2, Dtype::float32, true, 'e', 'f', 2, 10, "half_bits"},
    {"bfloat16", 2, Dtype::float32, true, 0, 0, 4, 16, "bfloat_bits"},
    {"float32", 4, Dtype::float32, true, 'f', 'f', 2, 11, "float"},
    {"float64", 8, Dtype::float64, true, 'd', 'f', 2, 12, "double"},
    {"uint8", 1, Dtype::float32, true, 'B', 'u', 1, 6, "u8"},
    {"int64", 8, Dtype::float32, false, 'q', 'i', 0, 5, "i64"},
    {"bool", 1, Dtype::float32, false, '?', 'b', 6, 1, nullptr},
    {"int32", 4, Dtype::float64, true, 'i', 'i', 0, 4, "i32"},
    {"int8", 1, Dtype::float32, true, 'b', 'i', 0, 2, "i8"},
};

inline const DtypeRow& row_of(Dtype dtype) { return kDtypes[static_cast<int>(dtype)]; }

/// Sets the first dtype whose row is such; false where there is none.
template <class Is>
bool find_dtype(Dtype& dtype, const Is& is) {
  for (int d = 0; d < kDtypeCount; ++d)
    if (is(kDtypes[d])) return dtype = static_cast<Dtype>(d), true;
  return false;
}

}  // namespace mercer
