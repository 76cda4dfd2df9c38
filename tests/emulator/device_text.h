// What a translated kernel stands on: CUDA's built-ins and the PTX that Mercer's device text uses, by the rules of the
// PTX ISA. Instructions that are not here do not compile.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "machine.h"

using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct double2 { double x, y; };
struct float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace emulator {

static const Host* host = nullptr;
static thread_local Thread* self = nullptr;

inline void wait_until(const char* what, auto&& done, std::uint32_t address = 0) {
  self->waits_for = what;
  self->waits_at = address;
  while (!done()) host->yield();
  self->waits_for = nullptr;
}

// ---- threads that meet --------------------------------------------------------------------------------------------
inline void meet(Meeting& meeting, const int& live, std::uint64_t& progress) {
  const unsigned mine = meeting.generation;
  ++meeting.arrived;
  wait_until("all threads", [&] {
    if (meeting.generation != mine) return true;
    if (meeting.arrived < live) return false;
    meeting.arrived = 0;
    ++meeting.generation;
    ++progress;
    return true;
  });
}

/// The values of the lanes in `mask`, and which of them there were.
inline const std::uint64_t* exchange(std::uint32_t mask, std::uint64_t value, std::uint32_t* took_part = nullptr) {
  Warp& warp = *self->warp;
  WarpMeeting* meeting = warp.meetings;
  while (meeting->mask != mask && meeting->mask != 0)
    if (++meeting == warp.meetings + 4) host->fail("too many masks of one warp");
  meeting->mask = mask;
  if (!(mask >> self->lane & 1)) host->fail("a lane outside of its own mask");
  const unsigned mine = meeting->generation;
  std::uint64_t* values = meeting->values[mine & 1];
  values[self->lane] = value;
  meeting->arrived |= 1u << self->lane;
  wait_until("lanes of its warp", [&] {
    if (meeting->generation != mine) return true;
    if ((meeting->arrived & mask & warp.live) != (mask & warp.live)) return false;
    meeting->took_part[mine & 1] = meeting->arrived;
    meeting->arrived = 0;
    ++meeting->generation;
    ++self->block->cluster->progress;
    return true;
  });
  if (took_part != nullptr) *took_part = meeting->took_part[mine & 1];
  return values;
}

template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// ---- shared memory ------------------------------------------------------------------------------------------------
/// The memory of declaration `site`, the same for all threads of a block.
template <class T>
T& shared(int site) {
  Block& block = *self->block;
  if (site >= kSharedSites) host->fail("too many declarations of shared memory");
  if (block.sites[site] == 0) {
    block.shared_used = (block.shared_used + 127) / 128 * 128;
    block.sites[site] = block.shared_used + 1;
    block.shared_used += sizeof(T);
    if (block.shared_used > kSharedBytes) host->fail("too much shared memory");
  }
  return *reinterpret_cast<T*>(block.shared + block.sites[site] - 1);
}
inline unsigned char* shared_place(std::uint32_t address) {
  Cluster& cluster = *self->block->cluster;
  const std::uint32_t rank = address >> kRankShift, offset = address & ((1u << kRankShift) - 1);
  if (rank >= cluster.blocks.size() || offset >= cluster.blocks[rank].shared_used)
    host->fail("an address outside of shared memory");
  return cluster.blocks[rank].shared + offset;
}
template <class T>
T& shared_at(std::uint32_t address) {
  if (address % sizeof(T) != 0) host->fail("a misaligned address of shared memory");
  return *reinterpret_cast<T*>(shared_place(address));
}
template <class T>
T& global_at(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) host->fail("a misaligned address of global memory");
  return *reinterpret_cast<T*>(const_cast<void*>(address));
}

// ---- mbarrier -----------------------------------------------------------------------------------------------------
struct Barrier {
  std::int16_t expected, pending;
  std::uint32_t phase : 1;
  std::int32_t bytes : 31;
};
static_assert(sizeof(Barrier) == 8);

inline void barrier_settle(Barrier& barrier) {
  ++self->block->cluster->progress;
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.expected;
}
inline void barrier_arrive(std::uint32_t address, std::int32_t bytes = 0) {
  auto& barrier = shared_at<Barrier>(address);
  if (barrier.pending <= 0) host->fail("more arrivals than a barrier expects");
  barrier.bytes += bytes;
  --barrier.pending;
  barrier_settle(barrier);
}
inline bool barrier_passed(std::uint32_t address, std::uint32_t parity) {
  auto& barrier = shared_at<Barrier>(address);
  if (barrier.phase != parity) return true;
  // Copies that this barrier counts are made now.
  auto& waiting = self->block->cluster->blocks[address >> kRankShift].copies;
  const auto own = waiting.find(address);
  if (own == waiting.end()) return false;
  for (const BulkCopy& copy : own->second) {
    std::memcpy(copy.to, copy.from != nullptr ? copy.from : copy.value, copy.bytes);
    barrier.bytes -= static_cast<std::int32_t>(copy.bytes);
    barrier_settle(barrier);
  }
  waiting.erase(own);
  return barrier.phase != parity;
}
inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                      std::uint32_t ranks) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    host->fail("a bulk copy that is not of whole 16 bytes");
  constexpr std::uint32_t kOffset = (1u << kRankShift) - 1;
  ++self->block->cluster->progress;  // whoever waits for it makes it
  for (std::uint32_t rank = 0; rank < self->block->cluster->blocks.size(); ++rank) {
    if (!(ranks >> rank & 1)) continue;
    const std::uint32_t base = rank << kRankShift;
    self->block->cluster->blocks[rank].copies[base | (barrier & kOffset)].push_back(
        {shared_place(base | (to & kOffset)), from, bytes});
  }
}

// ---- products of matrices -----------------------------------------------------------------------------------------
inline float of_half(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
inline std::uint16_t to_half(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }

/// Tensor cores truncate what they have summed.
inline float truncated(double value) {
  const float rounded = static_cast<float>(value);
  const bool beyond = std::abs(static_cast<double>(rounded)) > std::abs(value);
  return beyond ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) - 1) : rounded;
}

/// 16 elements along k.
struct Features {
  __m256 low, high;
};
inline Features features_at(const void* low, const void* high) {
  const auto load = [](const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  };
  return {load(low), load(high)};
}
inline double product_sum(const Features& a, const Features& b) {
  const auto wide = [](__m256 v) {  // products of two halves are exact
    return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
  };
  const __m256d sums = _mm256_add_pd(wide(_mm256_mul_ps(a.low, b.low)), wide(_mm256_mul_ps(a.high, b.high)));
  const __m128d halves = _mm_add_pd(_mm256_castpd256_pd128(sums), _mm256_extractf128_pd(sums, 1));
  return _mm_cvtsd_f64(halves) + _mm_cvtsd_f64(_mm_unpackhi_pd(halves, halves));
}

/// Row `row` of a K-major operand of wgmma in the 128-byte swizzle.
inline Features described(std::uint64_t descriptor, int row) {
  const std::uint32_t start = static_cast<std::uint32_t>(descriptor & 0x3fff) << 4;
  const std::uint32_t stride = static_cast<std::uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) host->fail("a descriptor that is not of the 128-byte swizzle");
  const std::uint32_t at =
      start + static_cast<std::uint32_t>(row) / 8 * stride + static_cast<std::uint32_t>(row) % 8 * 128;
  const auto place = [&](std::uint32_t offset) { return self->block->shared + (offset ^ (offset >> 7 & 7) << 4); };
  return features_at(place(at), place(at + 16));
}

/// m64nNk16, both operands in shared memory: a warp's sixteen rows, computed by one lane for all.
template <int N>
void multiply_group(float* const (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool adds) {
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&d));
  if (self->lane == 0) {
    const int first = static_cast<int>(self->index.x) / kWarp % 4 * 16;
    Features left[16];
    for (int row = 0; row < 16; ++row) left[row] = described(a, first + row);
    for (int column = 0; column < N; ++column) {
      const Features right = described(b, column);
      for (int row = 0; row < 16; ++row) {
        auto* sums = reinterpret_cast<float* const*>(places[row % 8 * 4 + column % 8 / 2]);
        float& to = *sums[column / 8 * 4 + row / 8 * 2 + column % 2];
        to = truncated((adds ? to : 0.0) + product_sum(left[row], right));
      }
    }
  }
  exchange(0xffffffffu, 0);
}

/// What a lane has of m16n8k16.
struct Fragments {
  std::uint32_t a[4], b[2];
  float* d[4];
};
inline void multiply_warp(const Fragments& own) {
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&own));
  if (self->lane == 0) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<const Fragments*>(places[lane]); };
    // 16 bits of k: the lane that has it, the half of its register.
    const auto gather = [&](int row, const auto& part) {
      std::uint16_t values[16];
      for (int k = 0; k < 16; ++k)
        values[k] = static_cast<std::uint16_t>(part(*of_lane(row % 8 * 4 + k % 8 / 2), k / 8) >> k % 2 * 16);
      return features_at(values, values + 8);
    };
    Features left[16];
    for (int row = 0; row < 16; ++row)
      left[row] = gather(row, [&](const Fragments& f, int half) { return f.a[row / 8 + half * 2]; });
    for (int column = 0; column < 8; ++column) {
      const Features right = gather(column, [](const Fragments& f, int half) { return f.b[half]; });
      for (int row = 0; row < 16; ++row) {
        float& to = *of_lane(row % 8 * 4 + column / 2)->d[row / 8 * 2 + column % 2];
        to = truncated(static_cast<double>(to) + product_sum(left[row], right));
      }
    }
  }
  exchange(0xffffffffu, 0);
}

// ---- PTX ----------------------------------------------------------------------------------------------------------
template <std::size_t N>
struct Text {
  char letters[N];
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, letters); }
  constexpr std::string_view view() const { return {letters, N - 1}; }
};

/// The shape of wgmma…m64nNkK by its text; no columns for another one.
struct ProductShape {
  enum class Type { f16, bf16, tf32, s8 };
  int columns = 0;
  Type type = Type::f16;
  bool of_registers = false;  // the left operand
  constexpr int bytes() const { return type == Type::tf32 ? 4 : type == Type::s8 ? 1 : 2; }  // of an element
  constexpr int depth() const { return 32 / bytes(); }
};
template <ProductShape kShape>
using SumOf = std::conditional_t<kShape.type == ProductShape::Type::s8, int, float>;
constexpr ProductShape product_shape(std::string_view text) {
  const std::string_view name = "wgmma.mma_async.sync.aligned.m64n";
  const auto at = text.find(name);
  if (at == text.npos) return {};
  ProductShape shape;
  if (text.find("k16.f32.f16.f16") != text.npos)
    shape.type = ProductShape::Type::f16;
  else if (text.find("k16.f32.bf16.bf16") != text.npos)
    shape.type = ProductShape::Type::bf16;
  else if (text.find("k8.f32.tf32.tf32") != text.npos)
    shape.type = ProductShape::Type::tf32;
  else if (text.find("k32.s32.s8.s8") != text.npos)
    shape.type = ProductShape::Type::s8;
  else
    return {};
  for (std::size_t i = at + name.size(); text[i] >= '0' && text[i] <= '9'; ++i)
    shape.columns = shape.columns * 10 + (text[i] - '0');
  shape.of_registers = text.find("}, {", at) != text.npos;
  return shape;
}
inline float flushed(float a) { return std::abs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
inline void meet_in_warp() { exchange(0xffffffffu, 0); }

/// An element of an operand by its bits; of tf32 the lowest 13 do not count.
template <ProductShape kShape>
double element(std::uint32_t bits) {
  if constexpr (kShape.type == ProductShape::Type::f16) return of_half(static_cast<std::uint16_t>(bits));
  if constexpr (kShape.type == ProductShape::Type::bf16) return std::bit_cast<float>(bits << 16);
  if constexpr (kShape.type == ProductShape::Type::s8) return static_cast<std::int8_t>(bits);
  return std::bit_cast<float>(bits & 0xffffe000u);
}

/// Element k of row `row` of a K-major operand without swizzle, blocks of 8 rows x 16 bytes, or in the 128-byte one.
template <ProductShape kShape>
double described_element(std::uint64_t descriptor, int row, int k) {
  const auto field = [&](int shift) { return static_cast<std::uint32_t>(descriptor >> shift & 0x3fff) << 4; };
  const auto swizzle = descriptor >> 62;
  if (swizzle > 1) host->fail("a descriptor of a swizzle that is neither 128 bytes nor none");
  constexpr int kBytes = kShape.bytes(), kOfBlock = 16 / kBytes;
  std::uint32_t at = field(0) + static_cast<std::uint32_t>(row / 8) * field(32);
  if (swizzle == 1) {
    at += static_cast<std::uint32_t>(row % 8 * 128 + k * kBytes);
    at ^= (at >> 7 & 7) << 4;
  } else {
    at += static_cast<std::uint32_t>(k / kOfBlock) * field(16) +
          static_cast<std::uint32_t>(row % 8 * 16 + k % kOfBlock * kBytes);
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, self->block->shared + at, kBytes);
  return element<kShape>(bits);
}

/// m64nNkK with both operands in shared memory, without swizzle: a warp's sixteen rows, computed by one lane for all.
template <ProductShape kShape>
void multiply_described(float* const (&d)[kShape.columns / 2], std::uint64_t a, std::uint64_t b, bool adds) {
  constexpr int kDepth = kShape.depth();
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&d));
  if (self->lane == 0) {
    const int first = static_cast<int>(self->index.x) / kWarp % 4 * 16;
    double left[16][kDepth];
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < kDepth; ++k) left[row][k] = described_element<kShape>(a, first + row, k);
    for (int column = 0; column < kShape.columns; ++column) {
      double right[kDepth];
      for (int k = 0; k < kDepth; ++k) right[k] = described_element<kShape>(b, column, k);
      for (int row = 0; row < 16; ++row) {
        auto* sums = reinterpret_cast<float* const*>(places[row % 8 * 4 + column % 8 / 2]);
        float& to = *sums[column / 8 * 4 + row / 8 * 2 + column % 2];
        double sum = adds ? to : 0.0;
        for (int k = 0; k < kDepth; ++k) sum += left[row][k] * right[k];
        to = truncated(sum);
      }
    }
  }
  exchange(0xffffffffu, 0);
}

/// m16n8k8 of tf32.
inline void multiply_warp_wide(const Fragments& own) {
  constexpr ProductShape kShape{8, ProductShape::Type::tf32, true};
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&own));
  if (self->lane == 0) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<const Fragments*>(places[lane]); };
    for (int column = 0; column < 8; ++column)
      for (int row = 0; row < 16; ++row) {
        float& to = *of_lane(row % 8 * 4 + column / 2)->d[row / 8 * 2 + column % 2];
        double sum = to;
        for (int k = 0; k < 8; ++k)
          sum += element<kShape>(of_lane(row % 8 * 4 + k % 4)->a[row / 8 + k / 4 * 2]) *
                 element<kShape>(of_lane(column * 4 + k % 4)->b[k / 4]);
        to = truncated(sum);
      }
  }
  exchange(0xffffffffu, 0);
}

/// m16n8k16 and m8n8k4 of float64: a lane's own elements, in the order of its registers. Sums are rounded once.
template <int kRows, int kDepth>
void multiply_warp_doubles(std::array<double, kRows * kDepth / 32> a, std::array<double, kDepth / 4> b,
                           std::array<double*, kRows / 4> d) {
  struct Own {
    const double *a, *b;
    double* const* d;
  };
  const Own own = {a.data(), b.data(), d.data()};
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&own));
  if (self->lane == 0) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<const Own*>(places[lane]); };
    for (int column = 0; column < 8; ++column)
      for (int row = 0; row < kRows; ++row) {
        double& to = *of_lane(row % 8 * 4 + column / 2)->d[row / 8 * 2 + column % 2];
        long double sum = to;
        for (int k = 0; k < kDepth; ++k)
          sum += static_cast<long double>(of_lane(row % 8 * 4 + k % 4)->a[k / 4 * (kRows / 8) + row / 8]) *
                 of_lane(column * 4 + k % 4)->b[k / 4];
        to = static_cast<double>(sum);
      }
  }
  exchange(0xffffffffu, 0);
}

/// m64nNkK with the left operand in registers: a warp's sixteen rows, computed by one lane for all.
template <ProductShape kShape>
void multiply_registers(SumOf<kShape>* const (&d)[kShape.columns / 2], std::array<std::uint32_t, 4> a, std::uint64_t b,
                        bool adds) {
  struct Own {
    SumOf<kShape>* const* d;
    std::uint32_t a[4];
  };
  const Own own = {d, {a[0], a[1], a[2], a[3]}};
  const std::uint64_t* places = exchange(0xffffffffu, reinterpret_cast<std::uint64_t>(&own));
  if (self->lane == 0) {
    constexpr int kDepth = kShape.depth(), kOfWord = 4 / kShape.bytes(), kOfRow = 4 * kOfWord;
    const auto of_lane = [&](int lane) { return reinterpret_cast<const Own*>(places[lane]); };
    double left[16][kDepth];
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < kDepth; ++k) {
        const Own& from = *of_lane(row % 8 * 4 + k % kOfRow / kOfWord);
        const std::uint64_t word = from.a[row / 8 + k / kOfRow * 2];
        constexpr int kBits = 8 * kShape.bytes();
        left[row][k] = element<kShape>(
            static_cast<std::uint32_t>(word >> k % kOfWord * kBits & ((std::uint64_t{1} << kBits) - 1)));
      }
    for (int column = 0; column < kShape.columns; ++column) {
      double right[kDepth];
      for (int k = 0; k < kDepth; ++k) right[k] = described_element<kShape>(b, column, k);
      for (int row = 0; row < 16; ++row) {
        auto& to = *of_lane(row % 8 * 4 + column % 8 / 2)->d[column / 8 * 4 + row / 8 * 2 + column % 2];
        double sum = adds ? to : 0.0;
        for (int k = 0; k < kDepth; ++k) sum += left[row][k] * right[k];
        if constexpr (kShape.type == ProductShape::Type::s8)
          to = static_cast<int>(sum);
        else
          to = truncated(sum);
      }
    }
  }
  exchange(0xffffffffu, 0);
}

/// An instruction by its text: `run` has its operands, outputs first. A row below for each; wgmma by its shape.
template <Text kText>
struct Instruction {
  template <class... Operands>
  static void run(Operands&... operands) {
    constexpr ProductShape kShape = product_shape(kText.view());
    static_assert(kShape.columns > 0, "the emulator does not know this instruction (tests/emulator/device_text.h)");
    static_assert(sizeof...(Operands) == kShape.columns / 2 + (kShape.of_registers ? 6 : 3));
    auto all = std::tie(operands...);
    meet_in_warp();
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      SumOf<kShape>* const sums[] = {&std::get<I>(all)...};
      constexpr std::size_t kNext = sizeof...(I);
      if constexpr (kShape.of_registers)
        multiply_registers<kShape>(
            sums, {std::get<kNext>(all), std::get<kNext + 1>(all), std::get<kNext + 2>(all), std::get<kNext + 3>(all)},
            std::get<kNext + 4>(all), std::get<kNext + 5>(all) != 0);
      else if constexpr (kShape.type == ProductShape::Type::bf16)
        multiply_described<kShape>(sums, std::get<kNext>(all), std::get<kNext + 1>(all), std::get<kNext + 2>(all) != 0);
      else
        multiply_group<kShape.columns>(sums, std::get<kNext>(all), std::get<kNext + 1>(all),
                                       std::get<kNext + 2>(all) != 0);
    }(std::make_index_sequence<kShape.columns / 2>());
  }
};
template <Text kText, class... Operands>
void ptx(Operands&&... operands) {
  Instruction<kText>::run(operands...);
}
#define EMULATOR_PTX(text, operands) \
  template <>                        \
  struct Instruction<text> {         \
    static void run operands;        \
  };                                 \
  inline void Instruction<text>::run operands

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Nothing to do: keeps a value in its register; order of memory; registers of warps.
EMULATOR_PTX("", (float&)) {}
EMULATOR_PTX(" ", (int&)) {}
EMULATOR_PTX("fence.mbarrier_init.release.cluster;", ()) {}
EMULATOR_PTX("nanosleep.u32 40;", ()) {}
EMULATOR_PTX("fence.proxy.async.shared::cta;", ()) {}
extern "C" void cudaGraphSetConditional(unsigned long long condition, unsigned value) {
  *reinterpret_cast<std::uint64_t*>(condition) = value;
}
EMULATOR_PTX("griddepcontrol.wait;", ()) {}
EMULATOR_PTX("griddepcontrol.launch_dependents;", ()) {}
EMULATOR_PTX("setmaxnreg.dec.sync.aligned.u32 56;", ()) {}
EMULATOR_PTX("setmaxnreg.inc.sync.aligned.u32 224;", ()) {}
EMULATOR_PTX("setmaxnreg.dec.sync.aligned.u32 %0;", (int)) {}
EMULATOR_PTX("setmaxnreg.inc.sync.aligned.u32 %0;", (int)) {}

// Arithmetic.
EMULATOR_PTX("cvt.f32.f16 %0, %1;", (float& to, u16 a)) { to = of_half(a); }
EMULATOR_PTX("cvt.rn.f16.f32 %0, %1;", (u16 & to, float a)) { to = to_half(a); }
EMULATOR_PTX("cvt.rn.f16x2.f32 %0, %1, %2;", (u32 & to, float high, float low)) {
  to = static_cast<u32>(to_half(high)) << 16 | to_half(low);
}
inline u16 to_bfloat(float a) {
  const auto bits = std::bit_cast<u32>(a);
  return static_cast<u16>(a != a ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
EMULATOR_PTX("cvt.rn.bf16.f32 %0, %1;", (u16 & to, float a)) { to = to_bfloat(a); }
EMULATOR_PTX("cvt.rn.bf16x2.f32 %0, %1, %2;", (u32 & to, float high, float low)) {
  to = static_cast<u32>(to_bfloat(high)) << 16 | to_bfloat(low);
}
EMULATOR_PTX("add.f16x2 %0, %1, %2;", (u32 & to, u32 a, u32 b)) {
  const auto sum = [&](int shift) {
    return to_half(of_half(static_cast<u16>(a >> shift)) + of_half(static_cast<u16>(b >> shift)));
  };
  to = static_cast<u32>(sum(16)) << 16 | sum(0);
}
EMULATOR_PTX("max.NaN.f32 %0, %1, %2;", (float& to, float a, float b)) {
  to = a != a || b != b ? NAN : a > b || (a == b && !std::signbit(a)) ? a : b;
}
EMULATOR_PTX("min.NaN.f32 %0, %1, %2;", (float& to, float a, float b)) {
  to = a != a || b != b ? NAN : a < b || (a == b && std::signbit(a)) ? a : b;
}
EMULATOR_PTX("ex2.approx.ftz.f32 %0, %1;", (float& to, float a)) { to = flushed(std::exp2(flushed(a))); }
EMULATOR_PTX("lg2.approx.ftz.f32 %0, %1;", (float& to, float a)) { to = std::log2(flushed(a)); }
EMULATOR_PTX("sqrt.approx.ftz.f32 %0, %1;", (float& to, float a)) { to = std::sqrt(flushed(a)); }
EMULATOR_PTX("rcp.approx.ftz.f32 %0, %1;", (float& to, float a)) { to = 1.0f / flushed(a); }
EMULATOR_PTX("rsqrt.approx.ftz.f32 %0, %1;", (float& to, float a)) { to = 1.0f / std::sqrt(flushed(a)); }
EMULATOR_PTX("div.full.f32 %0, %1, %2;", (float& to, float a, float b)) { to = a / b; }
EMULATOR_PTX("prmt.b32 %0, %1, %2, %3;", (u32 & to, u32 a, u32 b, u32 which)) {
  const u64 both = static_cast<u64>(b) << 32 | a;
  to = 0;
  for (int byte = 0; byte < 4; ++byte) to |= static_cast<u32>(both >> (which >> byte * 4 & 7) * 8 & 255) << byte * 8;
}
EMULATOR_PTX("sad.u32 %0, %1, %2, %0;", (u32 & to, u32 a, u32 b)) { to += a > b ? a - b : b - a; }
EMULATOR_PTX("vabsdiff4.u32.u32.u32.add %0, %1, %2, %0;", (u32 & to, u32 a, u32 b)) {
  for (int byte = 0; byte < 32; byte += 8)
    to += static_cast<u32>(std::abs(static_cast<int>(a >> byte & 255) - static_cast<int>(b >> byte & 255)));
}

// Loads and stores.
EMULATOR_PTX("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];", (float& x, float& y, float& z, float& w, const void* at)) {
  const float4 v = global_at<float4>(at);
  std::tie(x, y, z, w) = std::tie(v.x, v.y, v.z, v.w);
}
EMULATOR_PTX("ld.global.nc.v2.f64 {%0, %1}, [%2];", (double& x, double& y, const void* from)) {
  const double2 v = global_at<double2>(from);
  std::tie(x, y) = std::tie(v.x, v.y);
}
EMULATOR_PTX("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};", (void* to, u32 x, u32 y, u32 z, u32 w)) {
  global_at<uint4>(to) = {x, y, z, w};
}
EMULATOR_PTX("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};", (void* to, u32 x, u32 y)) {
  global_at<uint2>(to) = {x, y};
}
EMULATOR_PTX("ld.shared.f32 %0, [%1];", (float& to, u32 from)) { to = shared_at<float>(from); }
EMULATOR_PTX("ld.shared.v2.f32 {%0, %1}, [%2];", (float& x, float& y, u32 from)) {
  const float2 v = shared_at<float2>(from);
  std::tie(x, y) = std::tie(v.x, v.y);
}
EMULATOR_PTX("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];", (float& x, float& y, float& z, float& w, u32 from)) {
  const float4 v = shared_at<float4>(from);
  std::tie(x, y, z, w) = std::tie(v.x, v.y, v.z, v.w);
}
EMULATOR_PTX("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];", (u32 & x, u32& y, u32& z, u32& w, u32 from)) {
  const uint4 all = shared_at<uint4>(from);
  x = all.x, y = all.y, z = all.z, w = all.w;
}
EMULATOR_PTX("st.shared.v4.b32 [%0], {%1, %2, %3, %4};", (u32 to, u32 x, u32 y, u32 z, u32 w)) {
  shared_at<uint4>(to) = {x, y, z, w};
}
EMULATOR_PTX("st.shared.v4.f32 [%0], {%1, %2, %3, %4};", (u32 to, float x, float y, float z, float w)) {
  shared_at<float4>(to) = {x, y, z, w};
}
EMULATOR_PTX("st.shared.v2.b32 [%0], {%1, %2};", (u32 to, u32 x, u32 y)) { shared_at<uint2>(to) = {x, y}; }
EMULATOR_PTX("st.shared.f32 [%0], %1;", (u32 to, float x)) { shared_at<float>(to) = x; }
EMULATOR_PTX("st.shared.v2.f32 [%0], {%1, %2};", (u32 to, float x, float y)) { shared_at<float2>(to) = {x, y}; }
EMULATOR_PTX("{.reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.v4.b32 [%1], {%2, %3, %4, %5};}",
             (u32 on, u32 to, u32 x, u32 y, u32 z, u32 w)) {
  if (on != 0) shared_at<std::array<u32, 4>>(to) = {x, y, z, w};
}

// Copies that are waited for.
inline void start_copy(u32 shared, const void* from, std::size_t bytes, std::size_t size) {
  void* to = shared_place(shared);
  if ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % size != 0)
    host->fail("a misaligned asynchronous copy");
  if (bytes > size) host->fail("an asynchronous copy of more than its size");
  self->open_group.push_back({to, from, bytes, size});
}
EMULATOR_PTX("cp.async.cg.shared.global [%0], [%1], 16;", (u32 shared, const void* from)) {
  start_copy(shared, from, 16, 16);
}
EMULATOR_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;", (u32 shared, const void* from, u32 bytes)) {
  start_copy(shared, from, bytes, 16);
}
EMULATOR_PTX("cp.async.ca.shared.global [%0], [%1], 8, %2;", (u32 shared, const void* from, u32 bytes)) {
  start_copy(shared, from, bytes, 8);
}
EMULATOR_PTX("cp.async.ca.shared.global [%0], [%1], 4, %2;", (u32 shared, const void* from, u32 bytes)) {
  start_copy(shared, from, bytes, 4);
}
EMULATOR_PTX("prefetch.global.L2 [%0];", (const void*)) {}
EMULATOR_PTX("cp.async.commit_group;", ()) { self->groups.push_back(std::exchange(self->open_group, {})); }
EMULATOR_PTX("cp.async.wait_group %0;", (int pending)) {
  while (self->groups.size() > static_cast<std::size_t>(pending)) {
    for (const PendingCopy& copy : self->groups.front()) {
      std::memset(copy.to, 0, copy.size);
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    self->groups.erase(self->groups.begin());
  }
}
EMULATOR_PTX("cp.async.bulk.prefetch.L2.global [%0], %1;", (const void* from, u32 bytes)) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) host->fail("a misaligned prefetch");
}
EMULATOR_PTX("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
             (u32 to, const void* from, u32 bytes, u32 barrier)) {
  bulk_copy(to, from, bytes, barrier, 1u << self->block->rank);
}
EMULATOR_PTX(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
    "[%3], %4;",
    (u32 to, const void* from, u32 bytes, u32 barrier, u16 ranks)) {
  bulk_copy(to, from, bytes, barrier, ranks);
}
EMULATOR_PTX(
    "{.reg .b32 to, bar; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 bar, %2, %3; "
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [bar];}",
    (u32 shared, u32 bytes, u32 barrier, u32 rank)) {
  bulk_copy(shared, shared_place(shared), bytes, barrier, 1u << rank);
}

EMULATOR_PTX("mapa.shared::cluster.u32 %0, %1, %2;", (u32 & mapped, u32 address, u32 rank)) {
  mapped = rank << kRankShift | (address & ((1u << kRankShift) - 1));
}
EMULATOR_PTX("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];",
             (u32 to, u32 x, u32 y, u32 z, u32 w, u32 barrier)) {
  if (to % 16 != 0) host->fail("a misaligned address of shared memory");
  const u32 rank = to >> kRankShift;
  if (rank >= self->block->cluster->blocks.size() || rank != barrier >> kRankShift)
    host->fail("a store to a block that is not of the cluster, or not its barrier's");
  self->block->cluster->blocks[rank].copies[barrier].push_back({shared_place(to), nullptr, 16, {x, y, z, w}});
}

// Barriers.
EMULATOR_PTX("bar.sync %0, %1;", (int barrier, int threads)) {
  if (barrier < 0 || barrier >= kNamedBarriers || threads % kWarp != 0) host->fail("a barrier that there is not");
  meet(self->block->named[barrier], threads, self->block->cluster->progress);
}
EMULATOR_PTX("mbarrier.init.shared::cta.b64 [%0], %1;", (u32 barrier, int count)) {
  const auto arrivals = static_cast<std::int16_t>(count);
  shared_at<Barrier>(barrier) = {arrivals, arrivals, 0, 0};
}
EMULATOR_PTX("mov.b64 {%0, %1}, %2;", (u32 & low, u32& high, u64 value)) {
  low = static_cast<u32>(value);
  high = static_cast<u32>(value >> 32);
}
EMULATOR_PTX("mov.b64 %0, {%1, %2};", (unsigned long long& value, u32 low, u32 high)) {
  value = static_cast<u64>(high) << 32 | low;
}
EMULATOR_PTX("mbarrier.inval.shared::cta.b64 [%0];", (u32)) {}
EMULATOR_PTX("mbarrier.arrive.shared::cta.b64 _, [%0];", (u32 barrier)) { barrier_arrive(barrier); }
EMULATOR_PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", (u32 barrier, u32 bytes)) {
  barrier_arrive(barrier, static_cast<std::int32_t>(bytes));
}
EMULATOR_PTX("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}",
             (u32 & done, u32 barrier, u32 parity)) {
  wait_until("a barrier in shared memory", [&] { return barrier_passed(barrier, parity); }, barrier);
  done = 1;
}
EMULATOR_PTX(
    "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, "
    "[remote];}",
    (u32 barrier, u32 rank)) {
  barrier_arrive(rank << kRankShift | (barrier & ((1u << kRankShift) - 1)));
}
EMULATOR_PTX("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", ()) {
  Cluster& cluster = *self->block->cluster;
  meet(cluster.meeting, cluster.live, cluster.progress);
}
EMULATOR_PTX("barrier.cluster.arrive.relaxed;", ()) {}
EMULATOR_PTX("barrier.cluster.wait.acquire;", ()) {
  Cluster& cluster = *self->block->cluster;
  meet(cluster.meeting, cluster.live, cluster.progress);
}
EMULATOR_PTX("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; st.shared::cluster.f64 [to], %2;}",
             (u32 place, u32 rank, double value)) {
  shared_at<double>(rank << kRankShift | (place & ((1u << kRankShift) - 1))) = value;
}
EMULATOR_PTX("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4 + %5];",
             (u32 & x, u32& y, u32& z, u32& w, u32 address, int behind)) {
  address += behind;
  if (address % 16 != 0) host->fail("a misaligned address of shared memory");
  const auto& from = shared_at<std::array<u32, 4>>(address);
  x = from[0], y = from[1], z = from[2], w = from[3];
}
EMULATOR_PTX("ld.shared::cluster.v2.b32 {%0, %1}, [%2 + %3];", (u32 & x, u32& y, u32 address, int behind)) {
  address += behind;
  if (address % 8 != 0) host->fail("a misaligned address of shared memory");
  const auto& from = shared_at<std::array<u32, 2>>(address);
  x = from[0], y = from[1];
}
EMULATOR_PTX("mov.u32 %0, %%cluster_ctarank;", (u32 & rank)) { rank = self->block->rank; }

// Products of matrices; those of a warpgroup are done when they are asked for.
EMULATOR_PTX("wgmma.fence.sync.aligned;", ()) { meet_in_warp(); }
EMULATOR_PTX("wgmma.commit_group.sync.aligned;", ()) { meet_in_warp(); }
EMULATOR_PTX("wgmma.wait_group.sync.aligned %0;", (int)) { meet_in_warp(); }
EMULATOR_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];",
             (u32 & a, u32& b, u32& c, u32& d, u32 row)) {
  const u64* rows = exchange(0xffffffffu, row);
  u32* const to[] = {&a, &b, &c, &d};
  for (int matrix = 0; matrix < 4; ++matrix)
    *to[matrix] = (&shared_at<uint4>(static_cast<u32>(rows[matrix * 8 + self->lane / 4])).x)[self->lane % 4];
}
EMULATOR_PTX("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];", (u32 & a, u32& b, u32 row)) {
  const u64* rows = exchange(0xffffffffu, row);
  u32* const to[] = {&a, &b};
  for (int matrix = 0; matrix < 2; ++matrix)
    *to[matrix] = (&shared_at<uint4>(static_cast<u32>(rows[matrix * 8 + self->lane / 4])).x)[self->lane % 4];
}
EMULATOR_PTX(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};",
    (float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)) {
  multiply_warp({{a0, a1, a2, a3}, {b0, b1}, {&d0, &d1, &d2, &d3}});
}
EMULATOR_PTX(
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};",
    (float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 b)) {
  multiply_warp({{a0, a1, 0, 0}, {b, 0}, {&d0, &d1, &d2, &d3}});
}
EMULATOR_PTX(
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};",
    (float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)) {
  multiply_warp_wide({{a0, a1, a2, a3}, {b0, b1}, {&d0, &d1, &d2, &d3}});
}

EMULATOR_PTX(
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
    "{%12, %13, %14, %15}, {%0, %1, %2, %3};",
    (double& d0, double& d1, double& d2, double& d3, double a0, double a1, double a2, double a3, double a4, double a5,
     double a6, double a7, double b0, double b1, double b2, double b3)) {
  multiply_warp_doubles<16, 16>({a0, a1, a2, a3, a4, a5, a6, a7}, {b0, b1, b2, b3}, {&d0, &d1, &d2, &d3});
}
EMULATOR_PTX("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};",
             (double& d0, double& d1, double a, double b)) {
  multiply_warp_doubles<8, 4>({a}, {b}, {&d0, &d1});
}

// ---- kernels ------------------------------------------------------------------------------------------------------
template <class... A>
void call(void (*kernel)(A...), void** args) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(args[I])...);
  }(std::index_sequence_for<A...>());
}
template <class... A>
void** clone(void (*)(A...), void** args) {
  struct alignas(64) All {
    void* pointers[sizeof...(A) + 1];
    std::tuple<std::remove_cv_t<A>...> values;
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    auto* all = new All{{}, {*static_cast<std::remove_cv_t<A>*>(args[I])...}};
    ((all->pointers[I] = &std::get<I>(all->values)), ...);
    return all->pointers;
  }(std::index_sequence_for<A...>());
}

}  // namespace emulator

#include "device_builtins.h"
