#include "backend/cpu/kron/kron_stage.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "core/integers.h"
#include "core/system/cpu_features.h"
#include "plan/kron/kron_step.h"

namespace mercer::cpu {
namespace {

/// How an element type is read and written: as a value in which is computed. Whole numbers are computed without signs,
/// so that they wrap around.
template <class Stored, class Value>
struct Plain {
  using Element = Stored;
  using Computed = Value;
  static Value load(Stored value) { return value; }
  static Stored store(Value value) { return value; }
};
struct HalfElement {
  using Element = std::uint16_t;
  using Computed = float;
  static float load(std::uint16_t bits) { return float_from_half(bits); }
  static std::uint16_t store(float value) { return half_from_float(value); }
};
struct BfloatElement {
  using Element = std::uint16_t;
  using Computed = float;
  static float load(std::uint16_t bits) { return float_from_bfloat16(bits); }
  static std::uint16_t store(float value) { return bfloat16_from_float(value); }
};

template <class Body>
void with_element(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::float16: return body(HalfElement{});
    case Dtype::bfloat16: return body(BfloatElement{});
    case Dtype::float32: return body(Plain<float, float>{});
    case Dtype::float64: return body(Plain<double, double>{});
    case Dtype::int32: return body(Plain<std::uint32_t, std::uint32_t>{});
    case Dtype::int64: return body(Plain<std::uint64_t, std::uint64_t>{});
    default: fail(ErrorKind::unsupported, "kron: no elements of {}.", name_of(dtype));
  }
}

template <class T>
T scalar(double value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value);
  else return static_cast<T>(static_cast<std::int64_t>(value));
}

template <class T>
struct RowBlock {
  T* data;
  std::int64_t count, row_stride, stride;
  explicit RowBlock(const KronRows& rows)
      : data(reinterpret_cast<T*>(rows.data)), count(rows.count), row_stride(rows.row_stride), stride(rows.stride) {}
};

#if defined(__x86_64__)
constexpr std::int64_t kEight = 8;  // halves of a conversion

#define MERCER_F16C __attribute__((target("avx,f16c")))
MERCER_F16C std::int64_t widen_eights(const std::uint16_t* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kEight <= count; i += kEight)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  return i;
}
MERCER_F16C std::int64_t narrow_eights(const float* from, std::uint16_t* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kEight <= count; i += kEight)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#undef MERCER_F16C
#else
std::int64_t widen_eights(const std::uint16_t*, float*, std::int64_t) { return 0; }
std::int64_t narrow_eights(const float*, std::uint16_t*, std::int64_t) { return 0; }
#endif

/// Neighbours in memory on both sides; returns how many of them were converted, by instructions that round alike.
template <class E>
std::int64_t widen(const typename E::Element* from, typename E::Computed* to, std::int64_t count) {
  if constexpr (std::is_same_v<E, HalfElement>)
    if (cpu_features().avx2) return widen_eights(from, to, count);
  return 0;
}
template <class E>
std::int64_t narrow(const typename E::Computed* from, typename E::Element* to, std::int64_t count) {
  if constexpr (std::is_same_v<E, HalfElement>)
    if (cpu_features().avx2) return narrow_eights(from, to, count);
  return 0;
}

/// Calls body(m, i, packed position) along what is contiguous.
template <class Body>
void each_element(const KronRows& rows, std::int64_t first, std::int64_t end, const Body& body) {
  if (rows.columns == 1) {
    for (std::int64_t m = 0; m < rows.count; ++m)
      for (std::int64_t i = first; i < end; ++i) body(m, i, m * rows.extent + i);
    return;
  }
  for (std::int64_t i = first; i < end; ++i)
    for (std::int64_t m = 0; m < rows.count; ++m) body(m, i, i * rows.columns + m);
}

}  // namespace

std::int64_t kron_pitch(std::int64_t q, Dtype type) {
  return round_up(q, plan::kKronRowBytes / static_cast<std::int64_t>(size_of(type)));
}

void pack_group(const KronJob& job, const plan::KronGroup& group, std::int64_t item, double scale, void* to) {
  with_element(job.dtype, [&](auto element) {
    using E = decltype(element);
    using T = typename E::Computed;
    const std::int64_t pitch = kron_pitch(group.q, job.type());
    T* const packed = static_cast<T*>(to);
    std::fill_n(packed, group.p * pitch, T{0});
    // Each product, from the first factor on, takes the place of the one before.
    std::vector<T> product{scalar<T>(scale)}, next;
    std::int64_t rows = 1, cols = 1;
    for (int index = group.first; index < group.first + group.count; ++index) {
      const KronFactor& f = job.factors[index];
      const auto* data = reinterpret_cast<const typename E::Element*>(f.data) + job.item_offset(f.outer_strides, item);
      const bool is_last = index + 1 == group.first + group.count;
      const std::int64_t step = is_last ? pitch : cols * f.q;
      if (!is_last) next.resize(static_cast<std::size_t>(rows * f.p * step));
      T* const target = is_last ? packed : next.data();
      for (std::int64_t i = 0; i < rows * f.p; ++i)
        for (std::int64_t j = 0; j < cols; ++j) {
          const T left = product[static_cast<std::size_t>(i / f.p * cols + j)];
          for (std::int64_t q = 0; q < f.q; ++q)
            target[i * step + j * f.q + q] = left * E::load(data[i % f.p * f.p_stride + q * f.q_stride]);
        }
      rows *= f.p;
      cols *= f.q;
      if (!is_last) product.swap(next);
    }
  });
}

void read_rows(const KronJob& job, const KronRows& from, std::int64_t first, std::int64_t end, void* packed) {
  with_element(job.dtype, [&](auto element) {
    using E = decltype(element);
    using T = typename E::Computed;
    T* const to = static_cast<T*>(packed);
    const RowBlock<const typename E::Element> x(from);
    if (from.columns > from.count)
      for (std::int64_t i = first; i < end; ++i)
        std::fill(to + i * from.columns + from.count, to + (i + 1) * from.columns, T{0});
    if (from.columns == 1 && x.stride == 1) {
      for (std::int64_t m = 0; m < from.count; ++m) {
        const typename E::Element* const row = x.data + m * x.row_stride;
        T* const packed_row = to + m * from.extent;
        for (std::int64_t i = first + widen<E>(row + first, packed_row + first, end - first); i < end; ++i)
          packed_row[i] = E::load(row[i]);
      }
      return;
    }
    each_element(from, first, end, [&](std::int64_t m, std::int64_t i, std::int64_t at) {
      to[at] = E::load(x.data[m * x.row_stride + i * x.stride]);
    });
  });
}

void write_rows(const KronJob& job, const void* packed, const KronRows& y, const KronRows& out, std::int64_t first,
                std::int64_t end) {
  with_element(job.dtype, [&](auto element) {
    using E = decltype(element);
    using T = typename E::Computed;
    const T* const from = static_cast<const T*>(packed);
    const T beta = scalar<T>(job.beta);
    const RowBlock<typename E::Element> to(out);
    const RowBlock<const typename E::Element> add(y);
    if (out.columns == 1 && to.stride == 1 && add.data == nullptr && from != nullptr) {
      for (std::int64_t m = 0; m < out.count; ++m) {
        typename E::Element* const row = to.data + m * to.row_stride;
        const T* const packed_row = from + m * out.extent;
        for (std::int64_t i = first + narrow<E>(packed_row + first, row + first, end - first); i < end; ++i)
          row[i] = E::store(packed_row[i]);
      }
      return;
    }
    each_element(out, first, end, [&](std::int64_t m, std::int64_t i, std::int64_t at) {
      T value = from ? from[at] : T{0};
      if (add.data) value = value + beta * E::load(add.data[m * add.row_stride + i * add.stride]);
      to.data[m * to.row_stride + i * to.stride] = E::store(value);
    });
  });
}

}  // namespace mercer::cpu
