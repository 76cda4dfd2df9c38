// What products with Kronecker products do on CUDA alone: parts, scratch memory, graphs. Values of every kind of call
// are compared in kron_test.cpp.
#include <array>

#include "core/devices/cuda_driver.h"
#include "ops/context.h"
#include "ops/kron_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using kron::Options;

Array random_array(Dtype dtype, const Shape& shape, unsigned seed) {
  if (!is_whole(dtype)) return normal(dtype, shape, seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-9, 9);
  return Array(dtype, shape).fill([&] { return values(random); });
}

/// Columns j of F1 (x) F2 by its definition, in double.
double element(const Array& x, const std::array<const Array*, 2>& f, std::int64_t m, std::int64_t j, bool magnitudes) {
  const std::int64_t p = f[1]->shape()[0], q = f[1]->shape()[1];
  double sum = 0;
  for (std::int64_t k = 0; k < x.shape()[1]; ++k) {
    const double term = x(m, k) * (*f[0])(k / p, j / q) * (*f[1])(k % p, j % q);
    sum += magnitudes ? std::abs(term) : term;
  }
  return sum;
}

/// Runs a product on the device and returns the bytes of scratch memory that it asks for.
std::int64_t scratch_of(const Tensor& x, const std::vector<Tensor>& factors, const Tensor& out, const Options& options,
                        bool left, TestContext& context) {
  std::int64_t bytes = 0;
  take_kron_to_cuda(
      x, factors, out, options, context,
      [&](const Tensor& at_x, const std::vector<Tensor>& there, const Tensor& at_out, const Options& moved) {
        const auto call = [&](const Options& given) {
          if (left)
            kron::kron_matmul(there, at_x, at_out, given, context);
          else
            kron::matmul(at_x, there, at_out, given, context);
        };
        bytes = kron::workspace_size(moved, call);
        call(moved);
      });
  return bytes;
}

/// Every dtype once, on a call with alpha, beta and y: the bound of mercer/kron.h.
TEST(CudaKron, EveryDtype) {
  on_cuda([](TestContext& context) {
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64, Dtype::int32,
                              Dtype::int64}) {
      const Array x = random_array(dtype, {3, 15}, 1), f = random_array(dtype, {5, 9}, 2),
                  g = random_array(dtype, {3, 2}, 3), y = random_array(dtype, {3, 18}, 4), out(dtype, {3, 18});
      const std::vector<Tensor> factors = {f, g};
      const Tensor added = y;
      matmul(x, factors, out, {.alpha = -2, .beta = 3, .y = &added}, context);
      const double unit = is_whole(dtype) ? 0 : dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24;
      const double last = dtype == Dtype::float16 ? 0x1p-11 : dtype == Dtype::bfloat16 ? 0x1p-8 : 0;
      for (std::int64_t m = 0; m < 3; ++m)
        for (std::int64_t j = 0; j < 18; ++j) {
          const double wanted = -2 * element(x, {&f, &g}, m, j, false) + 3 * y(m, j);
          const double size = 2 * element(x, {&f, &g}, m, j, true) + std::abs(3 * y(m, j));
          const double bound = (5 + 3 + 6) * unit * size + last * std::abs(wanted) * 1.01 + (last > 0 ? 0x1p-24 : 0);
          ASSERT_LE(std::abs(out(m, j) - wanted), bound) << name_of(dtype) << " at " << m << ", " << j;
        }
    }
  });
}

/// Items, rows and columns a few at a time, and more axes than a kernel takes. Values are whole numbers, as parts
/// may have other kernels.
TEST(CudaKron, PartsChangeNothing) {
  on_cuda([](TestContext& context) {
    for (const bool left : {false, true}) {
      // 130 to 3 and 40 to 2 elements: what lies between the two passes has no room in out.
      const std::int64_t k = 130 * 40, j = 3 * 2;
      const Array f = random_array(Dtype::int32, left ? Shape{2, 1, 3, 130} : Shape{2, 1, 130, 3}, 1),
                  g = random_array(Dtype::int32, left ? Shape{2, 40} : Shape{40, 2}, 2);
      const Shape of_x = left ? Shape{3, k, 33} : Shape{3, 33, k};
      const Shape of_out = left ? Shape{2, 3, j, 33} : Shape{2, 3, 33, j};
      const Array x = random_array(Dtype::int32, of_x, 3), whole(Dtype::int32, of_out),
                  parts(Dtype::int32, of_out);
      const std::vector<Tensor> factors = {f, g};
      const auto scratch_of_call = [&](const Tensor& out) { return scratch_of(x, factors, out, {}, left, context); };
      const std::int64_t bytes = scratch_of_call(whole);
      context.state().own_costs().part_bytes = 2000;
      EXPECT_LT(scratch_of_call(parts), bytes);
      context.state().own_costs().part_bytes = plan::kPartBytes;
      EXPECT_TRUE(same_bits(whole, parts));
    }
  });
}

TEST(CudaKron, ManyAxesThatStepDifferently) {
  on_cuda([](TestContext& context) {
    const Shape batch = {2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2};
    Shape of_x = batch, of_f = batch, of_out;
    for (std::size_t axis = 0; axis < batch.size(); ++axis) of_f[axis] = axis % 4 == 0 ? 2 : 1;
    of_out = of_x;
    of_x.insert(of_x.end(), {1, 2});
    of_f.insert(of_f.end(), {2, 2});
    of_out.insert(of_out.end(), {1, 2});
    for (const bool turned : {false, true}) {  // of x, then axes do not join
      Shape strides = row_major(of_x);
      if (turned) {
        std::int64_t step = 1;
        for (std::size_t axis = 0; axis < of_x.size(); ++axis) strides[axis] = step, step *= of_x[axis];
      }
      const Array plain = random_array(Dtype::float32, of_x, 5), x = copy(plain, Dtype::float32, strides),
                  f = random_array(Dtype::float32, of_f, 6), out(Dtype::float32, of_out),
                  expected(Dtype::float32, of_out);
      const std::vector<Tensor> factors = {f};
      matmul(x, factors, out, {}, context);
      kron::matmul(plain, factors, expected);
      each_index(of_out, [&](const Shape& at) {
        EXPECT_LE(std::abs(read(out, at) - read(expected, at)), 0x1p-18);
      });
    }
  });
}

TEST(CudaKron, ScratchMemoryAndGraphs) {
  on_cuda([](TestContext& context) {
    // Factors that share no pass: 129 x 2, 2 x 129, 129 x 2. Between passes lie 258 * 2 values of a row, once in out,
    // which has as many, and before the last pass, which may not write where it reads, in scratch memory.
    constexpr std::int64_t rows = 16, k = 129 * 2 * 129, j = 2 * 129 * 2, factor_bytes = 129 * 2 * 4;
    constexpr std::int64_t x_bytes = rows * k * 4, bytes = rows * j * 4;
    const DeviceStream stream;
    const DeviceMemory memory(0, x_bytes + 2 * bytes + factor_bytes);
    const auto on_device = [&](std::int64_t place, Shape shape) {
      Tensor t(memory.data() + place, Dtype::float32, std::move(shape));
      t.device = {DeviceKind::cuda, 0};
      return t;
    };
    const Tensor x = on_device(0, {rows, k}), out = on_device(x_bytes, {rows, j});
    const Tensor f = on_device(x_bytes + 2 * bytes, {129, 2}), turned = on_device(x_bytes + 2 * bytes, {2, 129});
    const Array factor = random_array(Dtype::float32, {129, 2}, 1);
    stream.upload(memory.at(x_bytes + 2 * bytes), factor.tensor().data, factor_bytes);
    const std::vector<Tensor> factors = {f, turned, f};
    Options options;
    options.queue.stream = static_cast<CuStream>(stream);
    const std::int64_t scratch_bytes =
        kron::workspace_size(options, [&](const Options& o) { kron::matmul(x, factors, out, o, context); });
    EXPECT_EQ(scratch_bytes, bytes);
    const DeviceMemory scratch(0, scratch_bytes);
    std::int64_t asked = 0;
    options.queue.allocate = [&](std::int64_t count) {
      asked += count;
      return scratch.data();
    };
    kron::matmul(x, factors, out, options, context);  // compiles
    EXPECT_EQ(asked, scratch_bytes);
    const Recording recording(stream, [&] { kron::matmul(x, factors, out, options, context); });
    for (const unsigned seed : {2u, 3u}) {
      const Array next = random_array(Dtype::float32, {rows, k}, seed);
      stream.upload(memory.at(), next.tensor().data, x_bytes);
      std::vector<char> played(bytes), called(bytes);
      recording.play();
      stream.download(played.data(), memory.at(x_bytes), bytes);
      stream.fill(memory.at(x_bytes), 0x5a, bytes);
      kron::matmul(x, factors, out, options, context);
      stream.download(called.data(), memory.at(x_bytes), bytes);
      EXPECT_TRUE(played == called);
    }
  });
}

/// What lies between passes is in out where it fits: no scratch memory, whatever else out is, and the same bits as
/// with scratch memory, which an out that is y as well needs.
TEST(CudaKron, OutHoldsWhatLiesBetweenPasses) {
  on_cuda([](TestContext& context) {
    for (const bool left : {false, true}) {
      constexpr std::int64_t k = 36 * 36 * 36, kGap = 4, kPassed = 20;  // of rows, or columns
      const Array f = random_array(Dtype::float32, {36, 36}, 1);
      const std::vector<Tensor> factors = {f, f, f};
      const Shape shape = left ? Shape{k, kPassed} : Shape{kPassed, k};
      const Array x = random_array(Dtype::float32, shape, 2), zeros(Dtype::float32, shape);
      const auto scratch_of_call = [&](const Tensor& from, const Tensor& out, const Tensor* y) {
        Options given;
        given.beta = y != nullptr ? 1 : 0;
        given.y = y;
        return scratch_of(from, factors, out, given, left, context);
      };
      const Array added(Dtype::float32, shape), added_here(Dtype::float32, shape), plain(Dtype::float32, shape);
      const Array in_place = copy(x, Dtype::float32, row_major(shape));
      const Array apart(Dtype::float32, shape, {shape[1] + kGap, 1});
      EXPECT_EQ(scratch_of_call(x, plain, nullptr), 0);
      const Tensor of_zeros = zeros, itself = added_here;
      EXPECT_EQ(scratch_of_call(x, added, &of_zeros), 0);
      EXPECT_GE(scratch_of_call(x, added_here, &itself), k * kPassed * 4);
      EXPECT_TRUE(same_bits(added, added_here));
      EXPECT_EQ(scratch_of_call(in_place, in_place, nullptr), 0);
      EXPECT_TRUE(same_bits(plain, in_place));
      EXPECT_EQ(scratch_of_call(x, apart, nullptr), left ? 2 * k * kPassed * 4 : 0);  // no whole columns
      EXPECT_TRUE(same_bits(plain, copy(apart, Dtype::float32, row_major(shape))));
    }
  });
}

/// Chains of factors in one pass, by multiply-adds and on tensor cores, against passes on the CPU in double precision.
/// Pieces of 22 bits leave 2^-22 of an element and 2^-30 of the largest of a tile; products of low pieces are left out,
/// and the units cut sums off: docs/kernels/kron.md adds that up.
TEST(CudaKron, Chains) {
  on_cuda([](TestContext& context) {
    struct Case {
      std::vector<std::pair<std::int64_t, std::int64_t>> factors;
      std::int64_t rows;
    };
    const std::vector<Case> cases = {
        {{{8, 8}, {8, 8}, {8, 8}}, 3},
        {{{2, 2}, {3, 2}, {2, 4}, {5, 5}, {7, 3}}, 2},
        {{{16, 16}, {16, 16}}, 5},
        {{{16, 16}, {16, 16}, {16, 16}}, 2},
        {{{32, 32}, {32, 32}}, 2},
        {{{9, 12}, {20, 17}, {11, 9}}, 2},
        {{{31, 29}, {30, 31}}, 3},
        {{{8, 8}, {32, 32}, {16, 16}}, 1},
        {{{4, 4}, {24, 32}, {32, 16}}, 2},
        {{{16, 16}, {2, 2}, {2, 2}}, 4},  // an axis of several factors next to a large one
        {{{16, 16}, {1, 1}, {8, 8}}, 4},
        {{{3, 2}, {2, 3}, {20, 20}}, 2},
    };
    unsigned seed = 1;
    for (const Case& c : cases) {
      std::int64_t k = 1, j = 1, terms = 0;
      std::vector<Array> factors, wide;
      double gain = 1;
      for (const auto& [p, q] : c.factors) {
        factors.push_back(normal(Dtype::float32, {p, q}, ++seed));
        wide.push_back(copy(factors.back(), Dtype::float64, row_major({p, q})));
        double largest = 0;
        each_index({p, q}, [&](const Shape& at) { largest = std::max(largest, std::abs(read(wide.back(), at))); });
        gain *= static_cast<double>(p) * largest;
        k *= p;
        j *= q;
        terms += p + 2;
      }
      const std::vector<Tensor> views(factors.begin(), factors.end()), wide_views(wide.begin(), wide.end());
      Array x = normal(Dtype::float32, {c.rows, k}, ++seed);
      for (std::int64_t i = 0; i < k; ++i) x.set({0, i}, x(0, i) * 1e-25);  // a row of its own scale
      const Array exact(Dtype::float64, {c.rows, j}), out(Dtype::float32, {c.rows, j});
      kron::matmul(copy(x, Dtype::float64, row_major({c.rows, k})), wide_views, exact);
      matmul(x, views, out, {}, context);
      for (std::int64_t m = 0; m < c.rows; ++m) {
        double largest = 0, error = 0, size = 0;
        for (std::int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(x(m, i)));
        for (std::int64_t i = 0; i < j; ++i) {
          const double miss = out(m, i) - exact(m, i);
          error += miss * miss;
          size += exact(m, i) * exact(m, i);
          ASSERT_LE(std::abs(miss), static_cast<double>(terms) * 0x1p-24 * largest * gain)
              << k << " -> " << j << " at " << m << ", " << i << ": " << out(m, i) << " for " << exact(m, i);
        }
        EXPECT_LE(std::sqrt(error / size), 4e-7) << k << " -> " << j << " at " << m;
      }
    }
  });
}

/// Tiles of 28 of 131 columns: rows of a tile are no multiple of the threads' stride.
TEST(CudaKron, ColumnsThatDivideIntoNothing) {
  on_cuda([](TestContext& context) {
    const Array x = normal(Dtype::float32, {128, 131}, 1), f = normal(Dtype::float32, {4, 4}, 2),
                g = normal(Dtype::float32, {8, 8}, 3), out(Dtype::float32, {128, 131}),
                expected(Dtype::float32, {128, 131});
    const std::vector<Tensor> factors = {f, f, g};
    kron_matmul(factors, x, out, {}, context);
    kron::kron_matmul(factors, x, expected);
    for (std::int64_t i = 0; i < 128; ++i)
      for (std::int64_t j = 0; j < 131; ++j) {
        double size = 0;  // of the products of magnitudes that both round
        for (std::int64_t k = 0; k < 128; ++k)
          size += std::abs(f(i / 32, k / 32) * f(i / 8 % 4, k / 8 % 4) * g(i % 8, k % 8) * x(k, j));
        ASSERT_LE(std::abs(out(i, j) - expected(i, j)), 2 * (4 + 4 + 8 + 8) * 0x1p-24 * size) << i << ", " << j;
      }
  });
}

/// One factor in place, with more outputs than a block takes.
TEST(CudaKron, LargeFactorInPlace) {
  on_cuda([](TestContext& context) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16}) {
      const Array f = normal(dtype, {150, 150}, 1, 0.1), out(dtype, {3, 150});
      const Array x = normal(dtype, {3, 150}, 2);
      const std::vector<Tensor> factors = {f};
      matmul(x, factors, out, {.alpha = 2}, context);
      matmul(x, factors, x, {.alpha = 2}, context);
      EXPECT_TRUE(same_bits(x, out)) << name_of(dtype);
    }
  });
}

/// Few columns leave room in shared memory for long pieces of a large factor, but not for any.
TEST(CudaKron, OneRowOfALargeFactor) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t p = 700, q = 140;
    const Array x = random_array(Dtype::float32, {1, p}, 1), f = random_array(Dtype::float32, {p, q}, 2),
                one = filled(Dtype::float32, {1, 1}, {1}), out(Dtype::float32, {1, q});
    const std::vector<Tensor> factors = {f, one};
    matmul(x, factors, out, {}, context);
    for (std::int64_t j = 0; j < q; ++j) {
      const double size = element(x, {&f, &one}, 0, j, true);
      ASSERT_LE(std::abs(out(0, j) - element(x, {&f, &one}, 0, j, false)), (p + 1 + 6) * 0x1p-24 * size) << j;
    }
  });
}

}  // namespace
}  // namespace mercer
