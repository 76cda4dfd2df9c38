// The ends of a product with a Kronecker product: factors packed, and blocks of rows of any strides and element types
// as arrays of the computing type, and back.
#pragma once

#include <cstdint>

#include "backend/kron_job.h"
#include "plan/kron/kron.h"

namespace mercer::cpu {

/// Elements of a row of a packed factor.
std::int64_t kron_pitch(std::int64_t q, Dtype type);

/// Factors of a group for one item of job.outer, multiplied out and by `scale`: to[p * pitch + q], zeros up to pitch.
void pack_group(const KronJob& job, const plan::KronGroup& group, std::int64_t item, double scale, void* to);

/// Some rows of an array: element (m, i) lies m * row_stride + i * stride elements after data; packed, it lies at
/// m * extent + i, or at i * columns + m where columns is not 1.
struct KronRows {
  char* data = nullptr;
  std::int64_t count = 0, extent = 0, row_stride = 0, stride = 1, columns = 1;
};

/// Packs elements first .. end - 1 of all rows; columns beyond the rows become zero.
void read_rows(const KronJob& job, const KronRows& from, std::int64_t first, std::int64_t end, void* packed);
/// out = packed + beta y; packed may be null: zeros. y.data may be null.
void write_rows(const KronJob& job, const void* packed, const KronRows& y, const KronRows& out, std::int64_t first,
                std::int64_t end);

}  // namespace mercer::cpu
