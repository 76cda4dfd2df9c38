#include "mercer/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/dtypes.h"
#include "core/error.h"

namespace mercer {

std::size_t size_of(Dtype dtype) { return row_of(dtype).size; }
const char* name_of(Dtype dtype) { return row_of(dtype).name; }
bool is_whole(Dtype dtype) { return dtype == Dtype::int32 || dtype == Dtype::int64; }
Dtype compute_type(Dtype dtype) { return row_of(dtype).computing; }
bool is_of_points(Dtype dtype) { return row_of(dtype).of_points; }

std::string Device::to_text() const { return kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", index); }

Tensor::Tensor(void* data_in, Dtype dtype_in, std::vector<std::int64_t> shape_in, std::vector<std::int64_t> strides_in)
    : data(data_in), dtype(dtype_in), shape(std::move(shape_in)), strides(std::move(strides_in)) {
  require(shape.size() == strides.size(), "Tensor: shape and strides must have one entry per axis. Received {} and {}.",
          shape.size(), strides.size());
}

Tensor::Tensor(void* data_in, Dtype dtype_in, std::vector<std::int64_t> shape_in)
    : data(data_in), dtype(dtype_in), shape(std::move(shape_in)), strides(shape.size()) {
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= shape[axis];
  }
}

std::int64_t Tensor::count() const {
  std::int64_t n = 1;
  for (std::int64_t extent : shape) n *= extent;
  return n;
}

std::string Tensor::to_text() const { return fmt::format("{}[{}]", name_of(dtype), fmt::join(shape, ", ")); }

}  // namespace mercer
