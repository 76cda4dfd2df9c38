#include "backend/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kTaskBytes = std::int64_t{1} << 20;  // of a copy that one thread makes

template <bool to_host, class Unit>
void move_units(Unit* matrix, std::int64_t stride, Unit* piece, std::int64_t count) {
  for (std::int64_t at = 0; at < count; ++at)
    if constexpr (to_host) matrix[at * stride] = piece[at];
    else piece[at] = matrix[at * stride];
}

/// Elements along one row.
template <bool to_host>
void move_row(char* matrix, std::int64_t stride, std::int64_t size, char* piece, std::int64_t count) {
  if (stride == 1) {
    std::memcpy(to_host ? matrix : piece, to_host ? piece : matrix, static_cast<std::size_t>(count * size));
    return;
  }
  const auto as = [&](auto unit) {
    using Unit = decltype(unit);
    move_units<to_host>(reinterpret_cast<Unit*>(matrix), stride, reinterpret_cast<Unit*>(piece), count);
  };
  if (size == 1) as(std::uint8_t{});
  else if (size == 2) as(std::uint16_t{});
  else if (size == 4) as(std::uint32_t{});
  else as(std::uint64_t{});
}

/// `count` elements from the element `first` on, row by row.
template <bool to_host>
void move_elements(const HostMatrix& m, std::int64_t first, std::int64_t count, char* piece) {
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return m.data + (row * m.row_stride + column * m.column_stride) * m.size;
  };
  if (m.columns == 1) return move_row<to_host>(at(first, 0), m.row_stride, m.size, piece, count);
  if (m.column_stride == 1 && m.row_stride == m.columns)
    return move_row<to_host>(at(0, first), 1, m.size, piece, count);
  while (count > 0) {
    const std::int64_t row = first / m.columns, column = first % m.columns;
    const std::int64_t own = std::min(count, m.columns - column);
    move_row<to_host>(at(row, column), m.column_stride, m.size, piece, own);
    piece += own * m.size;
    first += own;
    count -= own;
  }
}

}  // namespace

Staging::Staging(const char* op, std::int64_t piece, Pool& pool)
    : op_(op), piece_(piece), pool_(pool), stream_(op), first_(piece, op), second_(piece, op) {}

Staging::~Staging() { cuda_driver()->stream_synchronize(stream_.get()); }

template <bool to_host>
void Staging::move(const HostMatrix& matrix, std::int64_t first, std::int64_t count, char* piece) {
  const std::int64_t task = std::max<std::int64_t>(1, kTaskBytes / matrix.size);
  pool_.run(ceil_div(count, task), [&](std::int64_t index, int) {
    const std::int64_t from = index * task;
    move_elements<to_host>(matrix, first + from, std::min(task, count - from), piece + from * matrix.size);
  });
}

void Staging::upload(CuPointer to, const HostMatrix& from, std::int64_t first, std::int64_t rows) {
  const CudaDriver& driver = *cuda_driver();
  const std::int64_t end = (first + rows) * from.columns, most = std::max<std::int64_t>(1, piece_ / from.size);
  for (std::int64_t at = first * from.columns; at < end; at += most) {
    Buffer& buffer = *buffers_[next_++ % 2];
    check_cuda(driver.event_synchronize(buffer.copied.get()), op_);
    const std::int64_t count = std::min(most, end - at);
    move<false>(from, at, count, buffer.memory.as<char>());
    check_cuda(driver.copy_async(to, reinterpret_cast<CuPointer>(buffer.memory.as<char>()),
                                 static_cast<std::size_t>(count * from.size), stream_.get()),
               op_);
    check_cuda(driver.event_record(buffer.copied.get(), stream_.get()), op_);
    to += static_cast<CuPointer>(count * from.size);
  }
}

void Staging::download(const HostMatrix& to, std::int64_t first, std::int64_t rows, CuPointer from) {
  const CudaDriver& driver = *cuda_driver();
  const std::int64_t begin = first * to.columns, end = begin + rows * to.columns;
  const std::int64_t most = std::max<std::int64_t>(1, piece_ / to.size), pieces = ceil_div(end - begin, most);
  const auto count_of = [&](std::int64_t piece) { return std::min(most, end - begin - piece * most); };
  const std::size_t base = next_;
  // The piece after the one that the host copies is on its way.
  for (std::int64_t piece = 0; piece <= pieces; ++piece) {
    if (piece < pieces) {
      Buffer& buffer = *buffers_[(base + static_cast<std::size_t>(piece)) % 2];
      check_cuda(driver.event_synchronize(buffer.copied.get()), op_);
      check_cuda(driver.copy_async(reinterpret_cast<CuPointer>(buffer.memory.as<char>()),
                                   from + static_cast<CuPointer>(piece * most * to.size),
                                   static_cast<std::size_t>(count_of(piece) * to.size), stream_.get()),
                 op_);
      check_cuda(driver.event_record(buffer.copied.get(), stream_.get()), op_);
    }
    if (piece == 0) continue;
    Buffer& buffer = *buffers_[(base + static_cast<std::size_t>(piece - 1)) % 2];
    check_cuda(driver.event_synchronize(buffer.copied.get()), op_);
    move<true>(to, begin + (piece - 1) * most, count_of(piece - 1), buffer.memory.as<char>());
  }
  next_ = base + static_cast<std::size_t>(pieces);
}

}  // namespace mercer::cuda
