// What every device text stands on: types, conversions, copies. NVRTC sees all files as one text, without a header.
#pragma once

#include "common/arguments.h"

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define MERCER_INLINE static __device__ __forceinline__
#define MERCER_METHOD __device__ __forceinline__
// Steps of a kernel that is compiled quickly are functions of their own, which the compiler takes side by side.
#ifndef MERCER_QUICK
#define MERCER_QUICK 0
#endif
#if MERCER_QUICK
#define MERCER_STEP static __device__ __noinline__
#define MERCER_STEP_METHOD __device__ __noinline__
#else
#define MERCER_STEP MERCER_INLINE
#define MERCER_STEP_METHOD MERCER_METHOD
#endif
#define INFINITY __int_as_float(0x7f800000)

// A, or B where the condition does not hold.
template <bool CONDITION, class A, class B> struct EitherOf { typedef A type; };
template <class A, class B> struct EitherOf<false, A, B> { typedef B type; };
template <bool CONDITION, class A, class B> using Either = typename EitherOf<CONDITION, A, B>::type;

// ---- 16-bit floats, as bits ----------------------------------------------------------------------------------------
struct half_bits { u16 bits; };
struct bfloat_bits { u16 bits; };

MERCER_INLINE float to_float(half_bits v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
MERCER_INLINE float to_float(bfloat_bits v) { return __uint_as_float((u32)v.bits << 16); }
MERCER_INLINE void convert(half_bits& to, float from) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(from)); }
MERCER_INLINE void convert(bfloat_bits& to, float from) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(from)); }
MERCER_INLINE void convert(float& to, float from) { to = from; }
MERCER_INLINE void convert(double& to, double from) { to = from; }
MERCER_INLINE void convert(i64& to, i64 from) { to = from; }

// Elements of arrays as the computing type T.
template <class T> MERCER_INLINE T widen(float v) { return (T)v; }
template <class T> MERCER_INLINE T widen(double v) { return (T)v; }
template <class T> MERCER_INLINE T widen(u8 v) { return (T)v; }
template <class T> MERCER_INLINE T widen(i8 v) { return (T)v; }
template <class T> MERCER_INLINE T widen(i32 v) { return (T)v; }
template <class T> MERCER_INLINE T widen(i64 v) { return (T)v; }
template <class T> MERCER_INLINE T widen(half_bits v) { return (T)to_float(v); }
template <class T> MERCER_INLINE T widen(bfloat_bits v) { return (T)to_float(v); }

// Types come in the order of mercer::Dtype.
template <class T>
MERCER_INLINE T load_any(const void* data, int dtype, i64 index) {
  switch (dtype) {
    case 0: return widen<T>(((const half_bits*)data)[index]);
    case 1: return widen<T>(((const bfloat_bits*)data)[index]);
    case 2: return widen<T>(((const float*)data)[index]);
    case 3: return widen<T>(((const double*)data)[index]);
    case 4: return widen<T>(((const u8*)data)[index]);
    case 7: return widen<T>(((const i32*)data)[index]);
    case 8: return widen<T>(((const i8*)data)[index]);
    default: return widen<T>(((const i64*)data)[index]);
  }
}

// ---- arithmetic of programs ----------------------------------------------------------------------------------------
MERCER_INLINE float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MERCER_INLINE float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MERCER_INLINE double max_nan(double a, double b) { return a > b || a != a ? a : b; }
MERCER_INLINE double min_nan(double a, double b) { return a < b || a != a ? a : b; }
MERCER_INLINE float exp2_unit(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
MERCER_INLINE float log2_unit(float a) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
MERCER_INLINE float sqrt_unit(float a) {
  float r;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}

// Square root, correctly rounded but for a few neighbours of a tie; numbers below the normal ones stay as they are.
// It lacks the branches of the built-in one, which keep roots of several pairs from overlapping.
MERCER_INLINE float square_root(float a) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(a));
  const float root = a * inverse, rest = __fmaf_rn(-root, root, a);
  const float better = __fmaf_rn(rest, 0.5f * inverse, root);
  return fabsf(a) < 1.17549435e-38f || a == INFINITY ? a : better;
}
MERCER_INLINE double square_root(double a) { return sqrt(a); }

// Within 2 units of the last place, without branches.
MERCER_INLINE float unit_quotient(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MERCER_INLINE float quotient(float a, float b) {
#ifdef UNIT_DIVISION
  return unit_quotient(a, b);
#else
  return a / b;
#endif
}
MERCER_INLINE double quotient(double a, double b) { return a / b; }

MERCER_INLINE float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
MERCER_INLINE double mul_add(double a, double b, double c) { return __fma_rn(a, b, c); }
// Exponentials of differences from the largest exponent: an error that grows with |a| is as small as exp(a) is.
MERCER_INLINE float fold_exp(float a) { return exp2_unit(1.44269504f * a); }
MERCER_INLINE double fold_exp(double a) { return exp(a); }
MERCER_INLINE float fold_log(float a) { return logf(a); }
MERCER_INLINE double fold_log(double a) { return log(a); }

// `b`, but of an angle beyond ir::kLargeAngle its own sine or cosine, whose reduction is exact and long: a call, since
// a tile has a copy of what is inlined for each of its pairs.
static __device__ __noinline__ float exact_sine(float a) { return sinf(a); }
static __device__ __noinline__ float exact_cosine(float a) { return cosf(a); }
static __device__ __noinline__ double exact_sine(double a) { return sin(a); }
static __device__ __noinline__ double exact_cosine(double a) { return cos(a); }
MERCER_INLINE float large_sine(float a, float b) { return fabsf(a) > 1e5f ? exact_sine(a) : b; }
MERCER_INLINE float large_cosine(float a, float b) { return fabsf(a) > 1e5f ? exact_cosine(a) : b; }
MERCER_INLINE double large_sine(double a, double b) { return fabs(a) > 1e9 ? exact_sine(a) : b; }
MERCER_INLINE double large_cosine(double a, double b) { return fabs(a) > 1e9 ? exact_cosine(a) : b; }

MERCER_INLINE u32 bits_of(float a) { return __float_as_uint(a); }
// Integers in the order of the floats; NaN lies beyond the infinities.
MERCER_INLINE u32 ordered(float a) { return bits_of(a) >> 31 ? ~bits_of(a) : bits_of(a) | 0x80000000u; }
MERCER_INLINE u64 bits_of(double a) { return (u64)__double_as_longlong(a); }
MERCER_INLINE u64 ordered(double a) { return bits_of(a) >> 63 ? ~bits_of(a) : bits_of(a) | 0x8000000000000000u; }
MERCER_INLINE float float_of(u32 a) { return __uint_as_float(a); }
MERCER_INLINE double float_of(u64 a) { return __longlong_as_double((i64)a); }
MERCER_INLINE float float_in_order(u32 a) { return float_of(a >> 31 ? a & 0x7fffffffu : ~a); }
MERCER_INLINE double float_in_order(u64 a) { return float_of(a >> 63 ? a & 0x7fffffffffffffffu : ~a); }
// What tf32 has of a float: eleven digits.
MERCER_INLINE float high_piece(float v) { return float_of(bits_of(v) & 0xffffe000u); }

// 1 / x within two units, of normal numbers: a quotient takes four times as long.
MERCER_INLINE float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}
// The inverse root from the unit's twenty-odd digits, by Newton's steps; a quarter of the time of sqrt and a quotient.
// x is positive and normal.
MERCER_INLINE double inverse_root(double x) {
  const int half = ((int)(bits_of(x) >> 52) - 1023) >> 1;
  const double scaled = x * __longlong_as_double((long long)(1023 - 2 * half) << 52);  // in [1, 4)
  double y = (double)rsqrtf((float)scaled);
  y = y * fma(-0.5 * scaled * y, y, 1.5);
  y = y * fma(-0.5 * scaled * y, y, 1.5);
  return y * __longlong_as_double((long long)(1023 - half) << 52);
}
MERCER_INLINE double inverse_of(double x) {
  const int exponent = (int)(bits_of(x) >> 52) - 1023;
  const double scaled = x * __longlong_as_double((long long)(1023 - exponent) << 52);  // in [1, 2)
  double y = (double)(1.0f / (float)scaled);
  y = fma(y, fma(-scaled, y, 1.0), y);
  y = fma(y, fma(-scaled, y, 1.0), y);
  return y * __longlong_as_double((long long)(1023 - exponent) << 52);
}

// The compiler knows nothing of the value behind this, and moves no memory access across.
MERCER_INLINE void keep(float& value) { asm volatile("" : "+f"(value)::"memory"); }
MERCER_INLINE void keep(int& value) { asm volatile(" " : "+r"(value)::"memory"); }

// ---- asynchronous copies to shared memory ---------------------------------------------------------------------------
MERCER_INLINE void copy_16(void* shared, const void* global) {
  const u32 address = (u32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
// So many bytes, and zeros up to BYTES.
template <int BYTES>
MERCER_INLINE void copy_up_to(u32 shared, const void* global, u32 bytes) {
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  else if (BYTES == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
// Zeros where `inside` is false; nothing is read there.
template <int BYTES>
MERCER_INLINE void copy_or_clear(u32 shared, const void* global, bool inside) {
  copy_up_to<BYTES>(shared, global, inside ? BYTES : 0);
}
MERCER_INLINE void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
MERCER_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
MERCER_INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Copies of contiguous bytes by the copy engine, counted by a barrier in shared memory (compute capability 9.0).
MERCER_INLINE u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }
MERCER_INLINE void* shared_pointer(u32 address) { return __cvta_shared_to_generic(address); }
// Between a thread's own accesses to shared memory and those of bulk copies and `wgmma` that come after it has arrived
// somewhere. That holds for reads too: an arrival is not held up by reads that have no answer yet, and during products
// of warpgroups these were seen to take longer than the copy that followed.
MERCER_INLINE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
MERCER_INLINE void barrier_init(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
MERCER_INLINE void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  async_fence();
}
MERCER_INLINE void barrier_end(u32 barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
MERCER_INLINE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
MERCER_INLINE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
MERCER_INLINE bool barrier_passed(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
MERCER_INLINE void barrier_wait(u32 barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}
// As `barrier_wait`, for a warp that feeds others: its questions would take a tenth of the instructions issued.
MERCER_INLINE void barrier_await(u32 barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) asm volatile("nanosleep.u32 40;" ::: "memory");
}
MERCER_INLINE void prefetch_bulk(const void* global, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
MERCER_INLINE void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// Floats in shared memory by address.
MERCER_INLINE float shared_float(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
MERCER_INLINE float2 shared_pair(u32 address) {
  float2 values;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(values.x), "=f"(values.y) : "r"(address) : "memory");
  return values;
}
MERCER_INLINE void shared_floats(float (&values)[4], u32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(address)
               : "memory");
}
MERCER_INLINE void store_floats(u32 address, const float (&values)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}
MERCER_INLINE void store_words(u32 address, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// N elements with aligned 16-byte accesses where they fill them.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};
// Four values that nobody writes while the kernel runs.
MERCER_INLINE Pack<float, 4> load_constant(const Pack<float, 4>* from) {
  Pack<float, 4> p;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(p.value[0]), "=f"(p.value[1]), "=f"(p.value[2]), "=f"(p.value[3])
               : "l"(from));
  return p;
}
MERCER_INLINE Pack<double, 4> load_constant(const Pack<double, 4>* from) {
  Pack<double, 4> p;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm volatile("ld.global.nc.v2.f64 {%0, %1}, [%2];"
                 : "=d"(p.value[half * 2]), "=d"(p.value[half * 2 + 1])
                 : "l"((const double*)from + half * 2));
  return p;
}
// Results pass the first-level cache by: outputs of eight members take 0.9 of the time.
MERCER_INLINE void store_words(void* to, const uint4& v) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
MERCER_INLINE void store_words(void* to, const uint2& v) {
  asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}
MERCER_INLINE void store_words(void* to, u32 v) { *(u32*)to = v; }
MERCER_INLINE void store_words(void* to, u16 v) { *(u16*)to = v; }
template <int BYTES> struct Word;
template <> struct Word<16> { typedef uint4 type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<2> { typedef u16 type; };
// One instruction stores it to global memory; the compiler makes one for each element of an assignment.
template <class T, int N>
MERCER_INLINE void store_pack(T* to, const Pack<T, N>& pack) {
  typedef typename Word<sizeof(T) * N>::type W;
  store_words(to, *(const W*)&pack);
}

// ---- batches --------------------------------------------------------------------------------------------------------
// Offset of batch item `index` in an array that steps so along the axes.
MERCER_INLINE i64 batch_offset(const BatchAxes& axes, const long long* steps, i64 index) {
  if (axes.count == 1) return index * steps[0];
  i64 offset = 0;
  u32 rest = (u32)index;  // kernels take fewer than 2^32 items
#pragma unroll 1
  for (int axis = axes.count - 1; axis >= 0; --axis) {
    const u32 extent = (u32)axes.extent[axis], next = rest / extent;
    offset += (i64)(rest - next * extent) * steps[axis];
    rest = next;
  }
  return offset;
}
// Products of a warp in tf32: of a, rows lane / 4 and + 8 and k of lane % 4, then the same rows and k + 4; of b, column
// lane / 4 and k, k + 4; of d, rows lane / 4 and (from [2] on) + 8 and columns 2 (lane % 4) and + 1.
MERCER_INLINE void multiply_16x8(float (&d)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(bits_of(a[0])), "r"(bits_of(a[1])), "r"(bits_of(a[2])), "r"(bits_of(a[3])), "r"(bits_of(b0)),
        "r"(bits_of(b1)));
}
// Products of 16-bit floats, in pairs: 16 rows of x times 8 of z, 16 features, added to d. Lane 4 g + t has of x rows g
// and g + 8 with features 2 t and + 1, then the same with features 2 t + 8 and + 9; of z those features of row g; of d
// it has rows g and (from [2] on) g + 8 with columns 2 t and + 1. Not volatile: other columns may come between.
MERCER_INLINE void multiply_16x8(float* d, const u32 (&x)[4], u32 z0, u32 z1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(z0), "r"(z1));
}
// Products as above, over 8 features.
MERCER_INLINE void multiply_16x8(float* d, const u32 (&x)[2], u32 z) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(z));
}
// Four 8 x 8 matrices of 16-bit floats, of z above; every lane names a row: those of matrix i lanes 8 i … 8 i + 7.
MERCER_INLINE void load_matrices(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// Two of them, from the rows that lanes 0 … 15 name.
MERCER_INLINE void load_two_matrices(u32 (&to)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}
