#include "codegen/interpreter/kron_portable.h"

#include <algorithm>

#include "core/error.h"

namespace mercer::codegen {
namespace {

using plan::KronStepArgs;
using plan::KronStepSource;

/// Sums that are in registers at once.
constexpr std::int64_t kPiece = 64;

/// out[c] = sum_p a[p * a_stride] * b[p * b_stride + c]
template <class T>
void sum_rows(std::int64_t p, const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, std::int64_t count,
              T* out) {
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - first);
    T sums[kPiece] = {};
    for (std::int64_t i = 0; i < p; ++i) {
      const T value = a[i * a_stride];
      const T* row = b + i * b_stride + first;
      if (piece == kPiece)
        for (std::int64_t c = 0; c < kPiece; ++c) sums[c] += value * row[c];
      else
        for (std::int64_t c = 0; c < piece; ++c) sums[c] += value * row[c];
    }
    std::copy_n(sums, piece, out + first);
  }
}

template <class T>
void run(const KronStepSource& s, const KronStepArgs& args) {
  const T* factor = static_cast<const T*>(args.factor);
  for (std::int64_t l = 0; l < s.left.count; ++l) {
    for (std::int64_t m = 0; m < s.middle.count; ++m) {
      const T* in = static_cast<const T*>(args.in) + l * s.left.in + m * s.middle.in;
      T* out = static_cast<T*>(args.out) + l * s.left.out + m * s.middle.out;
      if (s.right == 1 && s.out_q == 1) {
        sum_rows(s.p, in, s.in_p, factor, s.pitch, s.q, out);
        continue;
      }
      for (std::int64_t q = 0; q < s.q; ++q)
        sum_rows(s.p, factor + q, s.pitch, in, s.in_p, s.right, out + q * s.out_q);
    }
  }
}

}  // namespace

void run_kron_step(const KronStepSource& source, const KronStepArgs& args) {
  switch (source.type) {
    case Dtype::float32: return run<float>(source, args);
    case Dtype::float64: return run<double>(source, args);
    case Dtype::int32: return run<std::uint32_t>(source, args);  // unsigned: they wrap around
    case Dtype::int64: return run<std::uint64_t>(source, args);
    default: fail(ErrorKind::compile, "kron: no steps of {}.", name_of(source.type));
  }
}

}  // namespace mercer::codegen
