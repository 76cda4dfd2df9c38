#include "ops/gpu/stream_side.h"

namespace mercer::ops {

cuda::HostMatrix StreamSide::Array::plane(std::int64_t index) const {
  auto* data = static_cast<char*>(host.data);
  if (is_across) return {data + index * host.strides[0] * size(), size(), 1, host.strides[1], 1};
  return {data, size(), columns, host.strides[0], host.ndim() > 1 ? host.strides[1] : 1};
}

void StreamSide::add(const Tensor& host, int axis) {
  Array array{host, axis == 1};
  if (array.is_across) array.planes = host.shape[0];
  else if (host.ndim() > 1) array.columns = host.shape[1];
  arrays_.push_back(std::move(array));
}

std::int64_t StreamSide::row_bytes() const {
  std::int64_t bytes = 0;
  for (const Array& array : arrays_) bytes += array.planes * array.columns * array.size();
  return bytes;
}

void StreamSide::lay_out(cuda::Workspace& workspace, std::int64_t capacity, int buffers) {
  capacity_ = capacity;
  for (Array& array : arrays_) {
    array.places.clear();
    for (int buffer = 0; buffer < buffers; ++buffer)
      array.places.push_back(workspace.add(array.planes * capacity * array.columns * array.size()));
  }
}

void StreamSide::upload(cuda::Staging& staging, const cuda::Workspace& workspace, int buffer, std::int64_t place,
                        std::int64_t first, std::int64_t count) const {
  for (const Array& array : arrays_)
    for (std::int64_t plane = 0; plane < array.planes; ++plane) {
      const std::int64_t at = (plane * capacity_ + place) * array.columns * array.size();
      char* const to = workspace.at<char>(array.places[buffer]) + at;
      staging.upload(reinterpret_cast<CuPointer>(to), array.plane(plane), first, count);
    }
}

Tensor StreamSide::view(const cuda::Workspace& workspace, Device device, std::size_t index, int buffer,
                        std::int64_t place, std::int64_t count) const {
  const Array& array = arrays_[index];
  Tensor view = array.host;
  view.data = workspace.at<char>(array.places[buffer]) + place * array.columns * array.size();
  view.device = device;
  view.shape[array.is_across ? 1 : 0] = count;
  view.strides.back() = 1;
  if (view.ndim() > 1) view.strides[0] = array.is_across ? capacity_ : array.columns;
  return view;
}

}  // namespace mercer::ops
