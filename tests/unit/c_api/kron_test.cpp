// Kronecker products from C: the very bits of mercer/kron.h, and every refusal before anything is written.
#include "mercer/kron.h"

#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>

#include "unit/c_api/views.h"

extern "C" mercer_status product_in_c(const double* x, const double* f, const double* g, double* out);

namespace mercer {
namespace {

using namespace testing_support;

/// Numbers that int32 and 16-bit floats hold too.
Array numbers(Dtype dtype, const Shape& shape, unsigned seed, const Shape& strides = {}) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-9, 9);
  return Array(dtype, shape, strides).fill([&] { return values(random); });
}

/// A call that is right, as C sees it: x [2, 6, 6], factors [2, 3] and [3, 2]; so both verbs fit, transposed or not.
struct Call {
  static constexpr std::int64_t kSpare = 4096;
  Array x_array, f_array, g_array, y_array, out_array;
  View x, y, out;
  View f, g;
  std::vector<mercer_tensor> factors;
  mercer_kron_options options = MERCER_KRON_OPTIONS_INIT;

  explicit Call(Dtype dtype = Dtype::float64)
      : x_array(numbers(dtype, {2, 6, 6}, 1)),
        f_array(numbers(dtype, {2, 3}, 2)),
        g_array(numbers(dtype, {3, 2}, 3, column_major({3, 2}))),
        y_array(numbers(dtype, {6, 6}, 4)),
        out_array(dtype, {2, 6, 6}, {}, kSpare),
        x(x_array), y(y_array), out(out_array), f(f_array), g(g_array), factors{f.c, g.c} {}

  std::vector<Tensor> cpp_factors() const { return {f_array, g_array}; }

  mercer_status run(bool left = false) {
    return left ? mercer_kron_kron_matmul(factors.data(), factors.size(), x, out, &options, nullptr)
                : mercer_kron_matmul(x, factors.data(), factors.size(), out, &options, nullptr);
  }
  mercer_status size(std::int64_t* bytes, bool left = false) {
    return left ? mercer_kron_kron_matmul_workspace_size(factors.data(), factors.size(), x, out, &options, nullptr,
                                                         bytes)
                : mercer_kron_matmul_workspace_size(x, factors.data(), factors.size(), out, &options, nullptr, bytes);
  }
  void expect_refused(const std::string& words) {
    std::int64_t bytes = -5;
    for (const bool left : {false, true}) expect_invalid(run(left), words);
    expect_invalid(size(&bytes), words);
    EXPECT_EQ(bytes, -5);
    EXPECT_TRUE(out_array.untouched()) << words;
  }
};

TEST(CKron, FromC) {
  const double x[] = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 2, 3}, f[] = {1, 2, 3, 4}, g[] = {1, 0, 2, -1, 3, 1, 5, 2, -2};
  double out[12];
  expect_ok(product_in_c(x, f, g, out));
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < 6; ++j) {
      double sum = 0;
      for (int k = 0; k < 6; ++k) sum += x[6 * m + k] * f[k / 3 * 2 + j / 3] * g[k % 3 * 3 + j % 3];
      EXPECT_EQ(out[6 * m + j], sum);  // small whole numbers: every order of summation is exact
    }
}

TEST(CKron, EveryDtypeAndOptionGivesTheBitsOfCpp) {
  for (const Dtype dtype :
       {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64, Dtype::int32, Dtype::int64})
    for (int bits = 0; bits < 32; ++bits) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(dtype), bits));
      const bool left = bits & 1, turn_x = bits & 2, turn_factors = bits & 4;
      Call c(dtype);
      const std::uint8_t flags[] = {turn_factors, turn_factors};
      kron::Options options{.transpose_x = turn_x};
      const Tensor y = c.y_array;
      if (bits & 8) {
        c.options.alpha = options.alpha = -2;
        c.options.beta = options.beta = 3;
        c.options.y = c.y;
        options.y = &y;
      }
      c.options.transpose_x = turn_x ? -7 : 0;  // any but 0
      if (bits & 16 || turn_factors) {
        c.options.transpose_factors = flags;
        options.transpose_factors = {turn_factors, turn_factors};
      }
      Array expected(dtype, {2, 6, 6}, {}, Call::kSpare);
      if (left) kron::kron_matmul(c.cpp_factors(), c.x_array, expected, options);
      else kron::matmul(c.x_array, c.cpp_factors(), expected, options);
      expect_ok(c.run(left));
      EXPECT_TRUE(same_bits(c.out_array, expected));
    }
}

TEST(CKron, DefaultsVectorsAndPlaces) {
  Call c;
  Array vector = numbers(Dtype::float64, {6}, 9), got(Dtype::float64, {6}), expected(Dtype::float64, {6});
  kron::matmul(vector, c.cpp_factors(), expected);
  View x(vector), out(got);
  x.c.strides = out.c.strides = nullptr;
  expect_ok(mercer_kron_matmul(x, c.factors.data(), 2, out, nullptr, nullptr));
  EXPECT_TRUE(same_bits(got, expected));
  expect_ok(mercer_kron_matmul(x, c.factors.data(), 2, x, nullptr, nullptr));  // in place
  EXPECT_TRUE(same_bits(vector, expected));
}

TEST(CKron, NullStridesAreRowMajor) {
  Call c;
  Array expected(Dtype::float64, {2, 6, 6}, {}, Call::kSpare);
  kron::matmul(c.x_array, c.cpp_factors(), expected);
  c.x.c.strides = c.out.c.strides = c.factors[0].strides = nullptr;
  expect_ok(c.run());
  EXPECT_TRUE(same_bits(c.out_array, expected));
}

TEST(CKron, OwnContext) {
  Call c;
  mercer_context* context = nullptr;
  expect_ok(mercer_context_create(&context));
  expect_ok(mercer_context_set_target(context, "interpreter"));
  expect_ok(mercer_kron_matmul(c.x, c.factors.data(), 2, c.out, nullptr, context));
  mercer_context_destroy(context);
  Array expected(Dtype::float64, {2, 6, 6}, {}, Call::kSpare);
  kron::matmul(c.x_array, c.cpp_factors(), expected);
  EXPECT_TRUE(same_bits(c.out_array, expected));  // whole numbers: exact on every target
}

TEST(CKron, Shapes) {
  Call c;
  c.f.c.data = nullptr;
  std::int64_t shape[] = {-1, -1, -1, -1};
  std::int32_t ndim = 0;
  expect_ok(mercer_kron_matmul_shape(c.x, c.factors.data(), 2, nullptr, &ndim, nullptr));
  EXPECT_EQ(ndim, 3);
  ndim = 2;
  expect_invalid(mercer_kron_matmul_shape(c.x, c.factors.data(), 2, nullptr, &ndim, shape),
                 "kron.matmul: shape must have room for 3 axes. Received room for 2.");
  EXPECT_EQ(ndim, 2);
  EXPECT_EQ(shape[0], -1);
  for (const bool left : {false, true}) {
    std::int64_t rows[] = {5, 6}, sides[] = {6, 5};
    View x(c.x_array);
    x.c.ndim = 2;
    x.c.shape = left ? sides : rows;
    x.c.strides = nullptr;
    ndim = 4;
    expect_ok(left ? mercer_kron_kron_matmul_shape(c.factors.data(), 2, x, nullptr, &ndim, shape)
                   : mercer_kron_matmul_shape(x, c.factors.data(), 2, nullptr, &ndim, shape));
    EXPECT_EQ(ndim, 2);
    EXPECT_EQ(shape[0], left ? 6 : 5);
    EXPECT_EQ(shape[1], left ? 5 : 6);
    EXPECT_EQ(shape[2], -1);
  }
  expect_invalid(mercer_kron_matmul_shape(c.x, c.factors.data(), 2, nullptr, nullptr, shape),
                 "kron.matmul: ndim must be given.");
  expect_invalid(mercer_kron_kron_matmul_shape(c.factors.data(), 1, c.x, nullptr, &ndim, shape),
                 "kron.kron_matmul: the last but one axis of op(x)");
}

// ---- Callbacks. -----------------------------------------------------------------------------------------------------

struct Memory {
  std::vector<double> bytes;
  std::int64_t asked = 0;
  int times = 0;
  static void* give(void* user, std::int64_t bytes) {
    auto& memory = *static_cast<Memory*>(user);
    memory.asked = bytes;
    ++memory.times;
    memory.bytes.resize(static_cast<std::size_t>(bytes / 8 + 2));
    char* const at = reinterpret_cast<char*>(memory.bytes.data());
    return at + (16 - reinterpret_cast<std::uintptr_t>(at) % 16) % 16;
  }
};

TEST(CKron, WorkspaceComesFromTheCallback) {
  for (const bool left : {false, true}) {
    Call c;
    std::int64_t bytes = -1;
    expect_ok(c.size(&bytes, left));
    EXPECT_TRUE(c.out_array.untouched());
    Memory memory;
    mercer_queue queue = MERCER_QUEUE_INIT;
    queue.allocate = Memory::give;
    queue.user = &memory;
    c.options.queue = &queue;
    expect_ok(c.run(left));
    EXPECT_EQ(memory.times, 1);
    EXPECT_EQ(memory.asked, bytes);
    Array expected(Dtype::float64, {2, 6, 6}, {}, Call::kSpare);
    if (left) kron::kron_matmul(c.cpp_factors(), c.x_array, expected);
    else kron::matmul(c.x_array, c.cpp_factors(), expected);
    EXPECT_TRUE(same_bits(c.out_array, expected));
    expect_invalid(c.size(nullptr, left), "bytes must be given. Received a null pointer.");
  }
}

TEST(CKron, NoMemoryFromTheCallback) {
  Call c;
  mercer_queue queue = MERCER_QUEUE_INIT;
  queue.allocate = [](void*, std::int64_t) -> void* { return nullptr; };
  c.options.queue = &queue;
  expect_invalid(c.run(), "kron.matmul: workspace memory must be there. Received none of");
  EXPECT_TRUE(c.out_array.untouched());
}

TEST(CKron, ExceptionsEndAtTheBorder) {
  Call c;
  mercer_queue queue = MERCER_QUEUE_INIT;
  c.options.queue = &queue;
  queue.allocate = [](void*, std::int64_t) -> void* { throw std::runtime_error("a callback's own"); };
  expect_failure(c.run(), MERCER_INTERNAL, "a callback's own");
  queue.allocate = [](void*, std::int64_t) -> void* { throw std::bad_alloc(); };
  expect_failure(c.run(), MERCER_OUT_OF_MEMORY, "memory is exhausted");
  queue.allocate = [](void*, std::int64_t) -> void* { throw 5; };
  expect_failure(c.run(), MERCER_INTERNAL, "an exception of an unknown type");
  queue.allocate = [](void*, std::int64_t) -> void* { throw Error(ErrorKind::device, "of a device"); };
  expect_failure(c.run(), MERCER_DEVICE_FAILED, "of a device");
  EXPECT_TRUE(c.out_array.untouched());
}

TEST(CKron, ProgressCancels) {
  // Seconds of one thread, and asked after 50 ms; the rows of x are one row.
  const Array f_array = numbers(Dtype::float64, {128, 128}, 1), g_array = numbers(Dtype::float64, {128, 8}, 2),
              row = numbers(Dtype::float64, {128 * 128}, 3);
  const Array to(Dtype::float64, {16384, 128 * 8});
  Tensor rows = row;
  rows.shape = {16384, 128 * 128};
  rows.strides = {0, 1};
  const View f(f_array), g(g_array), x(rows), out(to);
  const mercer_tensor factors[] = {f.c, g.c};
  mercer_kron_options options = MERCER_KRON_OPTIONS_INIT;
  int asked = 0;
  options.progress_user = &asked;
  options.progress = [](void* user, double done, double total) -> std::int32_t {
    EXPECT_LE(done, total);
    ++*static_cast<int*>(user);
    return 0;
  };
  mercer_context* context = nullptr;
  expect_ok(mercer_context_create(&context));
  expect_ok(mercer_context_set_threads(context, 1));
  expect_ok(mercer_context_set_target(context, "interpreter"));
  expect_failure(mercer_kron_matmul(x, factors, 2, out, &options, context), MERCER_CANCELLED, "cancelled");
  EXPECT_EQ(asked, 1);
  mercer_context_destroy(context);
}

// ---- Refusals. ------------------------------------------------------------------------------------------------------

TEST(CKron, NullPointers) {
  Call c;
  std::int64_t bytes = 0;
  expect_invalid(mercer_kron_matmul(nullptr, c.factors.data(), 2, c.out, nullptr, nullptr),
                 "kron.matmul: x must be given. Received a null pointer.");
  expect_invalid(mercer_kron_kron_matmul(nullptr, 2, c.x, c.out, nullptr, nullptr),
                 "kron.kron_matmul: factors must be given. Received a null pointer.");
  expect_invalid(mercer_kron_matmul(c.x, c.factors.data(), 2, nullptr, nullptr, nullptr),
                 "kron.matmul: out must be given. Received a null pointer.");
  expect_invalid(mercer_kron_matmul_workspace_size(c.x, c.factors.data(), 2, nullptr, nullptr, nullptr, &bytes),
                 "kron.matmul: out must be given. Received a null pointer.");
  c.x.c.data = nullptr;
  c.expect_refused(": x has no memory. Received a null pointer.");
  Call shapeless;
  shapeless.factors[1].shape = nullptr;
  shapeless.expect_refused(": factors[1] must have a shape. Received a null pointer.");
}

TEST(CKron, FactorCounts) {
  Call c;
  for (const std::size_t count : {std::size_t{0}, std::size_t{65}, std::numeric_limits<std::size_t>::max()}) {
    const std::string words = fmt::format(": there must be 1 to 64 factors. Received {}.", count);
    expect_invalid(mercer_kron_matmul(c.x, c.factors.data(), count, c.out, nullptr, nullptr), words);
    expect_invalid(mercer_kron_kron_matmul(c.factors.data(), count, c.x, c.out, nullptr, nullptr), words);
  }
  EXPECT_TRUE(c.out_array.untouched());
}

template <class Change>
void expect_refused(const std::string& words, const Change& change) {
  expect_refused_with<Call>(words, change);
}

TEST(CKron, UnknownEnumerators) {
  expect_refused(": the dtype of x must be a mercer_dtype. Received 9.", [](Call& c) { c.x.c.dtype = 9; });
  expect_refused(": the dtype of factors[1] must be a mercer_dtype. Received -1.",
                 [](Call& c) { c.factors[1].dtype = -1; });
  expect_refused(": the dtype of out must be a mercer_dtype. Received 99.", [](Call& c) { c.out.c.dtype = 99; });
  expect_refused(": the device_kind of x must be a mercer_device_kind. Received 2.",
                 [](Call& c) { c.x.c.device_kind = 2; });
  expect_refused(": the device_index of out must be at least 0. Received -3.", [](Call& c) {
    c.out.c.device_kind = MERCER_CUDA;
    c.out.c.device_index = -3;
  });
}

TEST(CKron, Axes) {
  expect_refused(": the ndim of x must be from 0 to 64. Received -1.", [](Call& c) { c.x.c.ndim = -1; });
  expect_refused(": the ndim of out must be from 0 to 64. Received 65.", [](Call& c) { c.out.c.ndim = 65; });
  expect_refused(": x must have at least 1 axis. Received shape ().", [](Call& c) { c.x.c.ndim = 0; });
  expect_refused(": factors[0] must have at least 1 axis.", [](Call& c) { c.factors[0].ndim = 0; });
  static const std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40, 6}, negative[] = {2, -6, 6};
  expect_refused(": the elements of x must be counted in 63 bits. Received more.", [](Call& c) {
    c.x.c.shape = huge;
    c.x.c.strides = nullptr;
  });
  expect_refused(": x must have extents of at least 0", [](Call& c) {
    c.x.c.shape = negative;
    c.x.c.strides = nullptr;
  });
}

TEST(CKron, RulesOfCpp) {
  expect_refused(": x must be float16, bfloat16, float32, float64, int32 or int64. Received bool.",
                 [](Call& c) { c.x.c.dtype = MERCER_BOOLEAN; });
  expect_refused(": factors[0] must have the dtype of x, float64. Received float32.",
                 [](Call& c) { c.factors[0].dtype = MERCER_FLOAT32; });
  expect_refused(": out must have the dtype of x, float64. Received int64.",
                 [](Call& c) { c.out.c.dtype = MERCER_INT64; });
  static const std::int64_t narrow[] = {2, 6, 5};
  expect_refused(": out must have shape (2, 6, 6). Received (2, 6, 5).", [](Call& c) { c.out.c.shape = narrow; });
  expect_refused("axis of op(x) must have the product", [](Call& c) { c.factors.pop_back(); });
  expect_refused(": out must not overlap an input.", [](Call& c) { c.factors[0].data = c.out.c.data; });
  expect_refused(": y must be given where beta is not 0. Received beta = 2.", [](Call& c) { c.options.beta = 2; });
  static const std::int64_t still[] = {36, 0, 1};
  expect_refused(": no two elements of out may share memory.", [](Call& c) { c.out.c.strides = still; });
  expect_refused(": out must lie on the device of x, cpu. Received one on cuda:1.", [](Call& c) {
    c.out.c.device_kind = MERCER_CUDA;
    c.out.c.device_index = 1;
  });
  Call whole(Dtype::int32);
  whole.options.alpha = 0.5;
  whole.expect_refused(": alpha must be a whole number of magnitude at most 2^53 for arrays of int32. Received 0.5.");
}

// ---- Structs of other versions. -------------------------------------------------------------------------------------

struct LaterOptions {
  mercer_kron_options known = MERCER_KRON_OPTIONS_INIT;
  std::int64_t later = 0;
};

TEST(CKron, StructSizes) {
  expect_refused(": struct_size of the options must be the size of the struct", [](Call& c) {
    c.options.struct_size = 0;
  });
  expect_refused(": struct_size of the options must be the size of the struct", [](Call& c) {
    c.options.struct_size = std::numeric_limits<std::size_t>::max();
  });
  static mercer_queue queue = MERCER_QUEUE_INIT;
  queue.struct_size = 8;
  expect_refused(": struct_size of the queue must be the size of the struct, from 32 bytes on. Received 8.",
                 [](Call& c) { c.options.queue = &queue; });
}

TEST(CKron, OptionsOfALaterHeader) {
  Call c;
  LaterOptions options;
  options.known.struct_size = sizeof options;
  options.known.alpha = 2;
  options.later = 7;
  expect_invalid(mercer_kron_matmul(c.x, c.factors.data(), 2, c.out, &options.known, nullptr),
                 "Received a field of a later one.");
  EXPECT_TRUE(c.out_array.untouched());
  options.later = 0;
  expect_ok(mercer_kron_matmul(c.x, c.factors.data(), 2, c.out, &options.known, nullptr));
  Array expected(Dtype::float64, {2, 6, 6}, {}, Call::kSpare);
  kron::matmul(c.x_array, c.cpp_factors(), expected, {.alpha = 2});
  EXPECT_TRUE(same_bits(c.out_array, expected));
}

}  // namespace
}  // namespace mercer
