// Products with Kronecker products against the product written out in double precision, by the bound of
// mercer/kron.h: (P1 + ... + PN + 2 N + 2) u of the same product of magnitudes, and one rounding to 16 bits.
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "ops/context.h"
#include "ops/kron_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using kron::Options;

double rounding_unit(Dtype dtype) { return is_whole(dtype) ? 0 : dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24; }
double storage_unit(Dtype dtype) {
  return dtype == Dtype::float16 ? 0x1p-11 : dtype == Dtype::bfloat16 ? 0x1p-8 : 0;
}

/// How the elements of an array lie.
enum class Layout { packed, turned, gaps, backwards };
Shape strides_of(const Shape& shape, Layout layout) {
  if (shape.size() < 2 || layout == Layout::packed) return row_major(shape);
  if (layout == Layout::turned) return column_major(shape);
  Shape wide = shape;
  wide.back() = 2 * wide.back() + 1;
  Shape strides = row_major(wide);
  strides.back() = 2;
  if (layout == Layout::backwards)
    for (std::int64_t& stride : strides) stride = -stride;
  return strides;
}

Array random_array(Dtype dtype, const Shape& shape, unsigned seed, Layout layout = Layout::packed) {
  if (!is_whole(dtype)) return normal(dtype, shape, seed, 1, strides_of(shape, layout));
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-9, 9);
  return Array(dtype, shape, strides_of(shape, layout)).fill([&] { return values(random); });
}

/// Random square factors, and the order of their product.
struct Squares {
  std::vector<Array> arrays;
  std::vector<Tensor> views;
  std::int64_t order = 1;
  Squares(Dtype dtype, const Shape& sizes) {
    for (const std::int64_t size : sizes) {
      arrays.push_back(random_array(dtype, {size, size}, static_cast<unsigned>(size)));
      order *= size;
    }
    views.assign(arrays.begin(), arrays.end());
  }
};

/// A call as it is written.
struct Case {
  std::vector<std::pair<std::int64_t, std::int64_t>> factors;  // of op(F)
  std::int64_t rows = 3;
  Shape x_batch = {}, factor_batch = {};
  bool left = false, transpose_x = false;
  std::vector<bool> transpose_factors = {};
  double alpha = 1, beta = 0;
  Layout x_layout = Layout::packed, factor_layout = Layout::packed, out_layout = Layout::packed;
};

Shape with(Shape batch, std::int64_t rows, std::int64_t cols, bool turned) {
  if (turned) std::swap(rows, cols);
  batch.insert(batch.end(), {rows, cols});
  return batch;
}
Shape joined(const Shape& a, const Shape& b) {
  Shape result = a.size() > b.size() ? a : b;
  const Shape& other = a.size() > b.size() ? b : a;
  for (std::size_t back = 1; back <= other.size(); ++back) {
    std::int64_t& extent = result[result.size() - back];
    extent = extent == 1 ? other[other.size() - back] : extent;
  }
  return result;
}
/// The element of an array with broadcast leading axes.
double read_at(const Tensor& t, const Shape& batch, std::int64_t row, std::int64_t col, bool turned) {
  Shape index;
  for (int axis = 0; axis + 2 < t.ndim(); ++axis)
    index.push_back(t.shape[axis] == 1 ? 0 : batch[batch.size() - (t.ndim() - 2) + axis]);
  index.push_back(turned ? col : row);
  index.push_back(turned ? row : col);
  return read(t, index);
}

/// F1[k1, j1] ... FN[kN, jN] of one item of the batch, and its magnitude.
std::vector<double> kron_of(const Case& c, const std::vector<Array>& factors, const Shape& batch, bool magnitudes) {
  std::vector<double> product{1};
  std::int64_t rows = 1, cols = 1;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto [p, q] = c.factors[i];
    const bool turned = !c.transpose_factors.empty() && c.transpose_factors[i];
    std::vector<double> next(static_cast<std::size_t>(rows * p * cols * q));
    for (std::int64_t a = 0; a < rows * p; ++a)
      for (std::int64_t b = 0; b < cols * q; ++b) {
        const double value = read_at(factors[i], batch, a % p, b % q, turned);
        next[a * cols * q + b] = product[a / p * cols + b / q] * (magnitudes ? std::abs(value) : value);
      }
    product.swap(next);
    rows *= p;
    cols *= q;
  }
  return product;
}

void expect_right(const Case& c, Dtype dtype, TestContext& context, unsigned seed = 1) {
  std::int64_t p = 1, q = 1, steps = 2;
  std::vector<Array> factors;
  std::vector<Tensor> views;
  for (std::size_t i = 0; i < c.factors.size(); ++i) {
    const auto [a, b] = c.factors[i];
    p *= a;
    q *= b;
    steps += (c.left ? b : a) + 2;
    const bool turned = !c.transpose_factors.empty() && c.transpose_factors[i];
    factors.push_back(random_array(dtype, with(c.factor_batch, a, b, turned), seed + 10 + i, c.factor_layout));
  }
  for (const Array& factor : factors) views.push_back(factor.tensor());
  const std::int64_t k = c.left ? q : p, j = c.left ? p : q;
  const Array x = random_array(dtype, with(c.x_batch, c.left ? k : c.rows, c.left ? c.rows : k, c.transpose_x), seed,
                               c.x_layout);
  const Shape batch = joined(c.x_batch, c.factor_batch);
  const Shape out_shape = with(batch, c.rows, j, c.left);
  Array out(dtype, out_shape, strides_of(out_shape, c.out_layout));
  const Array y = random_array(dtype, out_shape, seed + 5);
  const Tensor y_view = y.tensor();
  Options options{.alpha = c.alpha, .beta = c.beta, .y = c.beta != 0 ? &y_view : nullptr,
                  .transpose_x = c.transpose_x, .transpose_factors = c.transpose_factors};
  if (c.left) kron_matmul(views, x, out, options, context);
  else matmul(x, views, out, options, context);
  each_index(batch, [&](const Shape& item) {
    const std::vector<double> values = kron_of(c, factors, item, false), sizes = kron_of(c, factors, item, true);
    for (std::int64_t m = 0; m < c.rows; ++m) {
      std::vector<double> row;
      for (std::int64_t a = 0; a < k; ++a)
        row.push_back(read_at(x, item, c.left ? a : m, c.left ? m : a, c.transpose_x));
      for (std::int64_t b = 0; b < j; ++b) {
        double sum = 0, size = 0;
        for (std::int64_t a = 0; a < k; ++a) {
          const std::int64_t at = c.left ? b * q + a : a * q + b;
          sum += row[a] * values[at];
          size += std::abs(row[a]) * sizes[at];
        }
        const double added = c.beta == 0 ? 0 : read_at(y, item, c.left ? b : m, c.left ? m : b, false);
        const double wanted = c.alpha * sum + c.beta * added;
        const double bound = static_cast<double>(steps) * rounding_unit(dtype) *
                                 (std::abs(c.alpha) * size + std::abs(c.beta * added)) +
                             storage_unit(dtype) * std::abs(wanted) * 1.01 + (storage_unit(dtype) > 0 ? 0x1p-24 : 0);
        const double value = read_at(out, item, c.left ? b : m, c.left ? m : b, false);
        ASSERT_LE(std::abs(value - wanted), bound) << name_of(dtype) << " at " << m << ", " << b << ": " << value
                                                   << " for " << wanted << ", " << out.tensor().to_text();
      }
    }
  });
}

constexpr Dtype kTypes[] = {Dtype::float32, Dtype::float64, Dtype::float16,
                            Dtype::bfloat16, Dtype::int32, Dtype::int64};

template <class Body>
void for_each_type(const Body& body) {
  on_each_target([&](TestContext& context) {
    for (const Dtype dtype : kTypes) body(context, dtype);
  });
}

TEST(Kron, ShapesOfFactors) {
  const std::vector<Case> cases = {
      {.factors = {{1, 1}}, .rows = 1},
      {.factors = {{5, 3}}, .rows = 7},
      {.factors = {{8, 8}, {8, 8}, {8, 8}}, .rows = 2},
      {.factors = {{16, 16}, {16, 16}}, .rows = 5},
      {.factors = {{2, 2}, {2, 2}, {2, 2}, {2, 2}, {2, 2}}, .rows = 4},
      {.factors = {{1, 1}, {3, 5}, {1, 4}, {4, 1}, {2, 7}}, .rows = 3},
      {.factors = {{7, 1}, {1, 9}, {6, 6}}, .rows = 3},
      {.factors = {{33, 17}, {5, 19}}, .rows = 3},
      {.factors = {{3, 40}, {31, 2}}, .rows = 17},
      {.factors = {{13, 10}, {11, 12}}, .rows = 2},
      {.factors = {{64, 64}}, .rows = 33},
      {.factors = {{12, 9}, {10, 7}}, .rows = 150},  // several blocks of columns, and a part of one
      {.factors = {{3, 5}}, .rows = 3001},
      {.factors = std::vector<std::pair<std::int64_t, std::int64_t>>(64, {1, 1}), .rows = 2},
  };
  for_each_type([&](TestContext& context, Dtype dtype) {
    for (Case c : cases)
      for (const bool left : {false, true}) {
        c.left = left;
        expect_right(c, dtype, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// A vector is a column of matmul, a row of kron_matmul, and the other one transposed.
TEST(Kron, FactorsThatAreVectors) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    const Array v = random_array(dtype, {3}, 1), f = random_array(dtype, {4, 5}, 2), u = random_array(dtype, {2}, 3);
    for (const bool left : {false, true})
      for (const std::vector<bool>& turns : {std::vector<bool>{}, {false, false, true}, {true, false, true}}) {
        std::vector<Tensor> vectors{v, f, u}, matrices = vectors;
        for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
          matrices[i].shape.insert(left ? matrices[i].shape.begin() : matrices[i].shape.end(), 1);
          matrices[i].strides.insert(left ? matrices[i].strides.begin() : matrices[i].strides.end(), 0);
        }
        const Options options{.transpose_factors = turns};
        const auto extent = [&](std::size_t i, bool of_x) {
          const bool turned = !turns.empty() && turns[i];
          return matrices[i].shape[(of_x != turned) != left ? 0 : 1];
        };
        const std::int64_t k = extent(0, true) * extent(1, true) * extent(2, true),
                           j = extent(0, false) * extent(1, false) * extent(2, false);
        const Array x = random_array(dtype, left ? Shape{k, 7} : Shape{7, k}, 4);
        const Shape shape = left ? Shape{j, 7} : Shape{7, j};
        const Array out(dtype, shape), expected(dtype, shape);
        EXPECT_EQ(left ? kron::kron_matmul_shape(vectors, x, options) : kron::matmul_shape(x, vectors, options), shape);
        if (left) kron_matmul(vectors, x, out, options, context), kron_matmul(matrices, x, expected, options, context);
        else matmul(x, vectors, out, options, context), matmul(x, matrices, expected, options, context);
        EXPECT_TRUE(same_bits(out, expected)) << name_of(dtype) << left;
      }
  });
}

TEST(Kron, LayoutsAndTransposes) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    for (const Layout x : {Layout::packed, Layout::turned, Layout::gaps, Layout::backwards})
      for (const Layout other : {Layout::packed, Layout::turned, Layout::gaps, Layout::backwards})
        for (int flags = 0; flags < 8; ++flags) {
          Case c{.factors = {{4, 3}, {5, 8}}, .rows = 9};
          c.x_layout = c.factor_layout = x;
          c.out_layout = other;
          c.left = (flags & 1) != 0;
          c.transpose_x = (flags & 2) != 0;
          if ((flags & 4) != 0) c.transpose_factors = {true, false};
          c.alpha = flags % 3 == 0 ? 1 : -2;
          c.beta = flags % 3 == 1 ? 3 : 0;
          expect_right(c, dtype, context, static_cast<unsigned>(flags));
          if (::testing::Test::HasFatalFailure()) return;
        }
  });
}

TEST(Kron, BatchesBroadcast) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    for (const auto& [of_x, of_factors] : std::vector<std::pair<Shape, Shape>>{
             {{3}, {}}, {{}, {3}}, {{2, 1}, {1, 3}}, {{2, 3}, {3}}, {{1}, {4}}, {{40}, {40}}})
      for (const bool left : {false, true}) {
        expect_right({.factors = {{4, 3}, {2, 5}}, .rows = 3, .x_batch = of_x, .factor_batch = of_factors,
                      .left = left},
                     dtype, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Enough work for several threads on few rows, whose passes are then shared, and on many.
TEST(Kron, ThreadsChangeNothing) {
  on_each_cpu_target([&](TestContext& context) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::int64})
      for (const auto& [rows, items] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 2}, {70, 1}, {2, 9}})
        for (const bool turned : {false, true}) {
          const Array x = random_array(dtype, {items, rows, 12 * 20 * 15}, 1);
          const std::vector<Array> factors = {random_array(dtype, {items, 12, 13}, 2),
                                              random_array(dtype, {items, 20, 21}, 3),
                                              random_array(dtype, {items, 15, 14}, 4)};
          const std::vector<Tensor> views(factors.begin(), factors.end());
          Shape shape = {items, rows, 13 * 21 * 14};
          std::vector<std::vector<char>> results;
          for (const int threads : {1, 2, 5}) {
            context.set_threads(threads);
            Array out(dtype, shape, turned ? column_major(shape) : row_major(shape));
            matmul(x, views, out, {}, context);
            results.push_back(out.bytes());
          }
          ASSERT_EQ(results[0], results[1]) << name_of(dtype) << " " << rows;
          ASSERT_EQ(results[0], results[2]) << name_of(dtype) << " " << rows;
        }
  });
}

/// Large products fetch lines ahead and may write past the caches.
TEST(Kron, FetchingAheadChangesNothing) {
  on_each_cpu_target([&](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
               {8, 8, 8, 8}, {64, 64}, {16, 16, 16}, {32}, {5, 7}, {4, 4, 4, 4, 4}}) {
        const Squares factors(dtype, sizes);
        const std::vector<Tensor>& views = factors.views;
        const std::int64_t k = factors.order;
        const Array x = random_array(dtype, {7, k}, 3), expected(dtype, {7, k});
        context.state().kron.ahead_from = -1;
        matmul(x, views, expected, {}, context);
        context.state().kron.ahead_from = 0;
        alignas(64) static std::array<char, 7 * 4096 * 8> memory;
        for (const int threads : {1, 3}) {
          context.set_threads(threads);
          memory.fill(0x5a);
          matmul(x, views, Tensor(memory.data(), dtype, {7, k}), {}, context);
          ASSERT_EQ(std::memcmp(memory.data(), expected.tensor().data, 7 * k * size_of(dtype)), 0) << k;
        }
      }
  });
}

/// A product in the place of x, or of a y that it is added to.
void expect_in_place(TestContext& context, Dtype dtype, const Shape& sizes, bool left, std::int64_t rows) {
  const Squares factors(dtype, sizes);
  const std::vector<Tensor>& views = factors.views;
  const std::int64_t k = factors.order;
  const Shape shape = left ? Shape{k, rows} : Shape{rows, k};
  Array x = random_array(dtype, shape, 3);
  const Array out(dtype, shape);
  const auto call = [&](const Tensor& from, const Tensor& to, const Options& options) {
    if (left) kron_matmul(views, from, to, options, context);
    else matmul(from, views, to, options, context);
  };
  call(x, out, {});
  call(x, x, {});
  ASSERT_TRUE(same_bits(x, out)) << name_of(dtype) << " " << k;
  const Array kept = copy(x, dtype);
  const Tensor y = x, kept_view = kept;
  const Array other = random_array(dtype, shape, 8), expected(dtype, shape);
  call(other, expected, {.beta = 2, .y = &kept_view});
  call(other, x, {.beta = 2, .y = &y});
  ASSERT_TRUE(same_bits(x, expected)) << name_of(dtype) << " " << k;
}

TEST(Kron, InPlace) {
  on_each_cpu_target([&](TestContext& context) {
    for (const Dtype dtype : kTypes)
      for (const Shape& sizes : std::vector<Shape>{{6}, {4, 5}, {4, 4, 8}, {40, 10}})
        for (const auto& [left, rows] : {std::pair<bool, std::int64_t>{false, 5}, {true, 5}, {true, 128}, {true, 131}})
          expect_in_place(context, dtype, sizes, left, rows);
  });
}

/// Each kind of pass alone and after another, of every type: chains of one to three factors along rows, along columns
/// and where vectors of these do not fit; wide ones, which end a call or are all of it; steps; and those of float64, of
/// which a block does not read all that it replaces. All of the cases above are four times as many kernels to compile.
TEST(Kron, InPlaceOnCuda) {
  struct InPlace {
    Dtype dtype;
    Shape sizes;
    bool left;
    std::int64_t rows;
  };
  const std::vector<InPlace> cases = {
      {Dtype::float32, {6}, false, 5},         {Dtype::float32, {4, 5}, true, 5},
      {Dtype::float32, {4, 4, 8}, false, 5},   {Dtype::float32, {4, 4, 8}, true, 128},
      {Dtype::float32, {4, 4, 8}, true, 131},  {Dtype::float32, {40, 10}, false, 5},
      {Dtype::float32, {40, 10}, true, 128},   {Dtype::float64, {4, 4, 8}, true, 131},
      {Dtype::float64, {40, 10}, false, 5},    {Dtype::float64, {40, 10}, true, 128},
      {Dtype::float16, {4, 4, 8}, false, 5},   {Dtype::float16, {40, 10}, false, 5},
      {Dtype::float16, {40, 10}, true, 5},     {Dtype::float16, {40, 10}, true, 128},
      {Dtype::bfloat16, {40, 10}, true, 5},    {Dtype::int32, {4, 5}, true, 131},
      {Dtype::int32, {40, 10}, true, 128},     {Dtype::int64, {6}, true, 5},
      {Dtype::int64, {40, 10}, false, 5},
  };
  on_cuda([&](TestContext& context) {
    for (const InPlace& c : cases) expect_in_place(context, c.dtype, c.sizes, c.left, c.rows);
  });
}

TEST(Kron, WhatIsNotRead) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    if (is_whole(dtype)) return;
    const Array f = random_array(dtype, {3, 3}, 1), x = random_array(dtype, {2, 9}, 2);
    Array bad(dtype, {2, 9});
    bad.fill([] { return kNan; });
    const std::vector<Tensor> views = {f, f};
    const Tensor y = bad, good = x;
    const Array out(dtype, {2, 9}), plain(dtype, {2, 9});
    matmul(x, views, plain, {}, context);
    matmul(x, views, out, {.beta = 0, .y = &y}, context);
    ASSERT_TRUE(same_bits(out, plain));
    matmul(bad, views, out, {.alpha = 0, .beta = 2, .y = &good}, context);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 9; ++j) ASSERT_EQ(out(i, j), 2 * x(i, j));
    matmul(bad, views, out, {.alpha = 0}, context);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 9; ++j) ASSERT_EQ(out(i, j), 0);
  });
}

/// NaN and infinities stay in their row; scales are kept.
TEST(Kron, RowsAreApart) {
  on_each_target([&](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (const bool left : {false, true}) {
        const Array f = random_array(dtype, {6, 6}, 1);
        const std::vector<Tensor> views = {f, f};
        Array x = random_array(dtype, left ? Shape{36, 11} : Shape{11, 36}, 2);
        const Array clean(dtype, x.shape()), out(dtype, x.shape());
        const auto call = [&](const Tensor& to) {
          if (left) kron_matmul(views, x, to, {}, context);
          else matmul(x, views, to, {}, context);
        };
        call(clean);
        x.set(left ? Shape{4, 3} : Shape{3, 4}, kNan);
        x.set(left ? Shape{7, 10} : Shape{10, 7}, kInf);
        call(out);
        for (int m = 0; m < 11; ++m)
          for (int i = 0; i < 36; ++i) {
            const double value = left ? out(i, m) : out(m, i);
            if (m == 3) ASSERT_TRUE(std::isnan(value));
            else if (m == 10) ASSERT_FALSE(std::isfinite(value));
            else ASSERT_EQ(value, left ? clean(i, m) : clean(m, i));
          }
      }
  });
}

/// Memory that ends where none may be touched.
class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : room_((bytes / kPage + 1) * kPage) {
    base_ = static_cast<char*>(
        ::mmap(nullptr, room_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_ + room_, kPage, PROT_NONE);
    data_ = base_ + room_ - bytes;
    std::memset(base_, 0x5a, room_);
  }
  ~Fenced() { ::munmap(base_, room_ + kPage); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  char* data() const { return data_; }
  bool is_whole_before() const {
    return std::all_of(base_, data_, [](char byte) { return byte == 0x5a; });
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t room_;
  char *base_, *data_;
};

TEST(Kron, NothingBeyondTheArraysIsTouched) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    for (const auto& [p, q, n] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {3, 5, 2}, {13, 7, 1}, {7, 13, 2}, {18, 17, 2}, {2, 3, 4}, {33, 35, 1}})
      for (const bool left : {false, true}) {
        std::int64_t k = 1, j = 1;
        std::vector<Tensor> views;
        const Fenced factor(static_cast<std::size_t>(p * q) * size_of(dtype));
        for (int i = 0; i < n; ++i) {
          views.emplace_back(factor.data(), dtype, left ? Shape{q, p} : Shape{p, q});
          k *= p;
          j *= q;
        }
        constexpr std::int64_t kRows = 3;
        const Fenced x(static_cast<std::size_t>(kRows * k) * size_of(dtype));
        const Fenced out(static_cast<std::size_t>(kRows * j) * size_of(dtype));
        std::memset(factor.data(), 0, static_cast<std::size_t>(p * q) * size_of(dtype));
        std::memset(x.data(), 0, static_cast<std::size_t>(kRows * k) * size_of(dtype));
        if (left) kron_matmul(views, Tensor(x.data(), dtype, {k, kRows}), Tensor(out.data(), dtype, {j, kRows}),
                                    {}, context);
        else matmul(Tensor(x.data(), dtype, {kRows, k}), views, Tensor(out.data(), dtype, {kRows, j}), {},
                          context);
        const std::size_t bytes = static_cast<std::size_t>(kRows * j) * size_of(dtype);
        ASSERT_TRUE(std::all_of(out.data(), out.data() + bytes, [](char byte) { return byte == 0; }));
        ASSERT_TRUE(out.is_whole_before());
      }
  });
}

TEST(Kron, WholeNumbersWrapAround) {
  on_each_target([&](TestContext& context) {
    const std::int32_t big = 0x40000001;
    const std::vector<std::int32_t> x = {big, 3}, f = {big, 5};
    std::int32_t out = 0;
    const Tensor factors[] = {view(f.data(), {2, 1})};
    matmul(view(x.data(), {1, 2}), factors, view(&out, {1, 1}), {.alpha = 3}, context);
    const auto u = static_cast<std::uint32_t>(big);
    EXPECT_EQ(static_cast<std::uint32_t>(out), 3u * (u * u + 15u));
  });
}

TEST(Kron, NothingToDo) {
  for_each_type([&](TestContext& context, Dtype dtype) {
    const Array f = random_array(dtype, {3, 4}, 1), none(dtype, {0, 4}), out(dtype, {2, 4}), no_rows(dtype, {0, 4});
    const std::vector<Tensor> one = {f}, empty = {none};
    matmul(Array(dtype, {0, 3}), one, no_rows, {}, context);
    matmul(Array(dtype, {2, 0}), empty, out, {}, context);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(out(i / 4, i % 4), 0);
    matmul(Array(dtype, {2, 4}), one, Array(dtype, {2, 3}), {.transpose_factors = {true}}, context);
  });
}

TEST(Kron, WorkspaceIsAllThatIsTaken) {
  on_each_cpu_target([&](TestContext& context) {
    const Array f = random_array(Dtype::float32, {8, 8}, 1), x = random_array(Dtype::float32, {30, 512}, 2);
    const std::vector<Tensor> views = {f, f, f};
    const Array out(Dtype::float32, {30, 512}), expected(Dtype::float32, {30, 512});
    kron::matmul(x, views, expected, {}, context);
    const std::int64_t bytes =
        kron::workspace_size({}, [&](const Options& o) { kron::matmul(x, views, out, o, context); });
    EXPECT_TRUE(out.untouched());
    EXPECT_GT(bytes, 0);
    std::vector<char> memory(static_cast<std::size_t>(bytes) + 16);
    Options options;
    std::int64_t asked = 0;
    options.queue.allocate = [&](std::int64_t count) {
      asked += count;
      return memory.data();
    };
    kron::matmul(x, views, out, options, context);
    EXPECT_EQ(asked, bytes);
    EXPECT_TRUE(same_bits(out, expected));
    options.queue.allocate = [](std::int64_t) { return nullptr; };
    EXPECT_EQ(message_of([&] { kron::matmul(x, views, out, options, context); }),
              fmt::format("kron.matmul: workspace memory must be there. Received none of {} bytes.", bytes));
    EXPECT_TRUE(same_bits(out, expected));
  });
}

TEST(Kron, Refusals) {
  const Array x = random_array(Dtype::float32, {2, 12}, 1), f = random_array(Dtype::float32, {3, 3}, 2),
              g = random_array(Dtype::float32, {4, 5}, 3), wide = random_array(Dtype::float64, {4, 5}, 3);
  Array out(Dtype::float32, {2, 15});
  const Tensor t = x;
  const auto refusal = [&](const std::vector<Tensor>& factors, const Tensor& to, const Options& options = {}) {
    const std::string message = message_of([&] { kron::matmul(x, factors, to, options); });
    EXPECT_TRUE(out.untouched());
    return message;
  };
  EXPECT_EQ(refusal({}, out), "kron.matmul: there must be 1 to 64 factors. Received 0.");
  EXPECT_EQ(refusal({f, wide}, out), "kron.matmul: factors[1] must have the dtype of x, float32. Received float64.");
  EXPECT_EQ(refusal({f, f}, out),
            "kron.matmul: the last axis of op(x) must have the product of the rows of op(factors), 9. Received shape "
            "(2, 12).");
  EXPECT_EQ(refusal({f, g}, x), "kron.matmul: out must have shape (2, 15). Received (2, 12).");
  EXPECT_EQ(refusal({f, g}, out, {.beta = 1}),
            "kron.matmul: y must be given where beta is not 0. Received beta = 1.");
  EXPECT_EQ(refusal({f, g}, out, {.beta = 1, .y = &t}),
            "kron.matmul: y must broadcast to the shape of out, (2, 15). Received (2, 12).");
  EXPECT_EQ(refusal({f, g}, out, {.transpose_factors = {true}}),
            "kron.matmul: transpose_factors must have one entry for each of 2 factors. Received 1.");
  Tensor flat = f;
  flat.shape = {};
  flat.strides = {};
  EXPECT_EQ(refusal({flat}, out), "kron.matmul: factors[0] must have at least 1 axis. Received shape ().");
  const Array square(Dtype::float32, {3, 12}), h = random_array(Dtype::float32, {4, 4}, 9);
  Tensor low = square, high = square;
  low.shape = high.shape = {2, 12};
  high.data = static_cast<char*>(high.data) + 48;
  const std::vector<Tensor> factors = {f, h};
  const std::string message = message_of([&] { kron::matmul(low, factors, high); });
  EXPECT_NE(message.find("kron.matmul: out must not overlap an input."), std::string::npos) << message;
  const std::vector<std::int64_t> whole(12), unit(4);
  const std::vector<Tensor> whole_factors = {view(unit.data(), {2, 2})};
  EXPECT_EQ(message_of([&] {
              kron::matmul(view(whole.data(), {6, 2}), whole_factors, view(whole.data(), {6, 2}), {.alpha = 0.5});
            }),
            "kron.matmul: alpha must be a whole number of magnitude at most 2^53 for arrays of int64. Received 0.5.");
  const Array bytes(Dtype::uint8, {2, 12});
  EXPECT_EQ(message_of([&] { kron::matmul(bytes, factors, out); }),
            "kron.matmul: x must be float16, bfloat16, float32, float64, int32 or int64. Received uint8.");
}

}  // namespace
}  // namespace mercer
