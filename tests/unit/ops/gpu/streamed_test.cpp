// Calls on arrays of the host that stream to a GPU, in many blocks of few points, against the oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cuda/runtime/workspace.h"
#include "core/devices/device_memory.h"
#include "core/emulated.h"
#include "ops/context.h"
#include "ops/device_arrays.h"
#include "ops/expected_folds.h"
#include "ops/gpu/stream_plan.h"
#include "ops/gpu/streamed.h"

namespace mercer {
namespace {

using namespace testing_support;
using ops::Streamed;

/// Bytes of blocks: several of each side of the arrays below, of which z comes again for each block of x; then all of
/// z stays.
constexpr std::int64_t kFew = 2500, kMore = 16000;

/// `as_fits`: with what is free, too, which the slow emulator does once.
template <class Body>
void on_streams(const Body& body, bool as_fits = !is_emulated()) {
  for (std::int64_t bytes : {kFew, kMore, std::int64_t{0}}) {
    if (bytes == 0 && !as_fits) continue;
    on_cuda([&](TestContext& context) {
      SCOPED_TRACE("blocks of " + std::to_string(bytes) + " bytes");
      context.state().own_costs().stream.memory = bytes;
      context.state().own_costs().stream.piece = bytes == 0 ? 1 << 20 : 256;
      if (bytes > 0) context.state().own_costs().stream.points = 60;
      if (bytes > 0) context.state().own_costs().stream.terms = 1;
      body(static_cast<Context&>(context));
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

std::vector<double> numbers(const Array& a) {
  std::vector<double> values;
  each_index(a.shape(), [&](const Shape& index) { values.push_back(read(a, index)); });
  return values;
}

Shape padded(const Shape& shape) { return {2 * shape[1] + 3, 2}; }

TEST(Streamed, BlocksTakeNoMoreThanTheyMay) {
  for (std::int64_t n : {0, 1, 1000, 100000000})
    for (std::int64_t pair : {0, 4})
      for (std::int64_t bytes : {std::int64_t{1} << 16, std::int64_t{1} << 22, std::int64_t{1} << 36}) {
        const ops::StreamSizes sizes{1000000, n, 256, 320, pair > 0 ? 0 : 512, pair, 80};
        const ops::StreamPlan plan = ops::plan_stream(sizes, bytes);
        ASSERT_GE(plan.x_rows, 1);
        ASSERT_GE(plan.z_rows, 1);
        const std::int64_t taken = plan.x_rows * (2 * sizes.x_bytes + sizes.result_bytes) +
                                   plan.z_buffers() * plan.z_rows * sizes.z_bytes + 2 * plan.pairs * pair;
        EXPECT_LE(taken, bytes) << n << " points of z, pairs of " << pair << " bytes";
        EXPECT_EQ(plan.z_stays, n * sizes.z_bytes <= bytes / 2);
        if (pair > 0) EXPECT_GE(plan.pairs, plan.x_rows);
      }
}

TEST(Streamed, PairsOfAllTypesAndStrides) {
  constexpr std::int64_t kM = 83, kN = 141, kK = 5;
  const Extra extra{{{"b", 1.5}}, {0.5, 1, 2, 0.25, 1}, numbers(normal(Dtype::float32, {kM}, 3)),
                    numbers(normal(Dtype::float32, {kN}, 4)), 7, -3};
  const Expr f = parse("exp(-sum(w*abs(x-z))/b)*(2 + row*col) + i - j/4");
  on_streams([&](Context& context) {
    Turns turns(2);
    for (Dtype dtype : {Dtype::float16, Dtype::float32, Dtype::float64, Dtype::uint8}) {
      if (turns.leaves_out()) continue;
      const bool whole = dtype == Dtype::uint8;
      const Array x = whole ? uniform(dtype, {kM, kK}, 1, 0, 9, padded({kM, kK}))
                            : normal(dtype, {kM, kK}, 1, 1, padded({kM, kK}));
      const Array z = whole ? uniform(dtype, {kN, kK}, 2, 0, 9) : normal(dtype, {kN, kK}, 2, 1, {1, kN});
      const Dtype type = compute_type(dtype);
      const Array w = filled(type, {kK}, extra.w), row = filled(type, {kM}, extra.row),
                  col = filled(type, {kN}, extra.col);
      Arguments arguments = arguments_of(extra);
      arguments.w = w.tensor();
      arguments.row = row.tensor();
      arguments.col = col.tensor();
      const Expected expected = expected_pairs(f, x, z, 4 * unit(type), parse("exp(0*sum(w*x)/b)*(9 + abs(i - j/4))"),
                                               extra);
      for (const Shape& strides : {row_major({kM, kN}), column_major({kM, kN}), padded({kM, kN})}) {
        const Array out(type, {kM, kN}, strides);
        const Tensor zt = z;
        ops::run_streamed(0, f, x, &zt, {Streamed::Verb::pairwise, nullptr, ReduceKind::sum, 1, out}, arguments,
                          context);
        expect_pairs(out, expected, name_of(dtype));
      }
    }
  });
}

TEST(Streamed, ProductsAndGradients) {
  constexpr std::int64_t kM = 75, kN = 210, kK = 6;
  const Expr f = parse("exp(-sum((x-z)^2)/4)*(1 + j/100)");
  on_streams([&](Context& context) {
    Turns turns(2);
    for (Dtype dtype : kWide) {
      if (turns.leaves_out()) continue;
      const Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2), v = normal(dtype, {kN, 3}, 3),
                  one = normal(dtype, {kN}, 4, 1, {2}), coef = normal(dtype, {2, kN}, 5);
      const Tensor zt = z;
      const auto values = table(f, x, z);
      for (const Array* factor : {&v, &one}) {
        const Tensor given = *factor;
        const Array out(dtype, given.ndim() == 2 ? Shape{kM, 3} : Shape{kM});
        ops::run_streamed(0, f, x, &zt, {Streamed::Verb::product, &given, ReduceKind::sum, 1, out}, {}, context);
        expect_product(out, values, given, name_of(dtype));
      }
      const Tensor weights = coef;
      const Array gradient(dtype, {2, kM, kK}), whole(dtype, {2, kM, kK});
      ops::run_streamed(0, f, x, &zt, {Streamed::Verb::gradient, &weights, ReduceKind::sum, 1, gradient}, {}, context);
      Context host;
      kernel_gradient(f, x, &zt, weights, whole, {}, host);
      each_index({2, kM, kK}, [&](const Shape& at) {
        // Sums of 210 terms of at most 3 each way, by the contract of either device.
        ASSERT_NEAR(read(gradient, at), read(whole, at), 2 * unit(dtype) * 210 * 3) << at[0] << " " << at[1];
      });
    }
  });
}

/// What kernel_reduce gives for a row of values.
double folded(ReduceKind kind, const std::vector<double>& row) {
  std::size_t best = 0;
  double sum = 0, high = -kInf;
  for (std::size_t n = 0; n < row.size(); ++n) {
    sum += row[n];
    high = std::max(high, row[n]);
    const bool largest = kind == ReduceKind::max || kind == ReduceKind::argmax;
    if (std::isnan(row[best])) continue;
    if (std::isnan(row[n]) || (largest ? row[n] > row[best] : row[n] < row[best])) best = n;
  }
  if (kind == ReduceKind::sum) return sum;
  if (kind == ReduceKind::argmax || kind == ReduceKind::argmin) return static_cast<double>(best);
  if (kind != ReduceKind::logsumexp) return row[best];
  double total = 0;
  if (std::isnan(sum)) return sum;
  if (std::isinf(high)) return high;
  for (double value : row) total += std::exp(value - high);
  return high + std::log(total);
}

constexpr ReduceKind kKinds[] = {ReduceKind::sum,    ReduceKind::max,    ReduceKind::min,
                                 ReduceKind::argmax, ReduceKind::argmin, ReduceKind::logsumexp};

/// Whole numbers, so that ties are many and values exact; a point of z that is NaN makes a column of NaN.
TEST(Streamed, ReductionsWithTiesAndNaN) {
  constexpr std::int64_t kM = 40, kN = 330, kK = 2;
  const Expr f = parse("sum(abs(x-z)) - 4");
  on_streams([&](Context& context) {
    for (bool has_nan : {false, true}) {
      Array x = uniform(Dtype::float32, {kM, kK}, 1, 0, 4), z = uniform(Dtype::float32, {kN, kK}, 2, 0, 4);
      for (Array* points : {&x, &z})
        each_index(points->shape(), [&](const Shape& at) { points->set(at, std::floor(read(*points, at))); });
      if (has_nan)
        for (std::int64_t n : {200, 301}) z.set({n, 1}, kNan);
      const Tensor zt = z;
      const auto values = table(f, x, z);
      for (ReduceKind kind : kKinds) {
        const bool index = kind == ReduceKind::argmax || kind == ReduceKind::argmin;
        const Array out(index ? Dtype::int64 : Dtype::float32, {kM});
        ops::run_streamed(0, f, x, &zt, {Streamed::Verb::reduce, nullptr, kind, 1, out}, {}, context);
        for (std::int64_t m = 0; m < kM; ++m) {
          const double wanted = folded(kind, values[m]);
          const double bound = kind == ReduceKind::logsumexp ? 1e-6 * (1 + std::abs(wanted)) : 0;
          ASSERT_TRUE(within(out(m), wanted, bound, Dtype::float32))
              << name_of(kind) << " of row " << m << ": " << out(m) << " for " << wanted;
        }
      }
    }
  });
}

TEST(Streamed, NeighboursWithTiesAndNaN) {
  constexpr std::int64_t kM = 37, kN = 300, kK = 2;
  const Expr f = parse("sum(abs(x-z))");
  on_streams([&](Context& context) {
    Array x = uniform(Dtype::float32, {kM, kK}, 1, 0, 4), z = uniform(Dtype::float32, {kN, kK}, 2, 0, 4);
    for (Array* points : {&x, &z})
      each_index(points->shape(), [&](const Shape& at) { points->set(at, std::floor(read(*points, at))); });
    for (std::int64_t n = 3; n < kN; n += 7) z.set({n, 0}, kNan);
    const Tensor zt = z;
    const auto table_of = table(f, x, z);
    for (std::int64_t k : {std::int64_t{1}, std::int64_t{20}, kN}) {  // more than a block has, too
      const Array values(Dtype::float32, {kM, k}, column_major({kM, k})), indices(Dtype::int64, {kM, k});
      ops::run_streamed(0, f, x, &zt, {Streamed::Verb::nearest, nullptr, ReduceKind::sum, k, values, indices}, {},
                        context);
      for (std::int64_t m = 0; m < kM; ++m) {
        std::vector<std::int64_t> order(kN);
        for (std::int64_t n = 0; n < kN; ++n) order[n] = n;
        const std::vector<double>& row = table_of[m];
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
          return std::isnan(row[b]) ? !std::isnan(row[a]) : row[a] < row[b];
        });
        for (std::int64_t at = 0; at < k; ++at) {
          ASSERT_EQ(indices(m, at), order[at]) << "row " << m << ", neighbour " << at << " of " << k;
          ASSERT_TRUE(within(values(m, at), row[order[at]], 0, Dtype::float32)) << "row " << m << ", " << at;
        }
      }
    }
  });
}

TEST(Streamed, FewPointsAndNone) {
  on_streams([&](Context& context) {
    for (const auto& [m, n, k] : {std::tuple{1, 1, 3}, {1, 90, 3}, {90, 1, 3}, {5, 0, 3}, {0, 5, 3}, {4, 6, 0}}) {
      const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
      const Array v = normal(Dtype::float32, {n, 2}, 3), out(Dtype::float32, {m, 2}), sums(Dtype::float32, {m}),
                  pairs(Dtype::float32, {m, n});
      const Tensor zt = z, vt = v;
      const Expr f = parse("exp(-sum(abs(x-z)))");
      ops::run_streamed(0, f, x, &zt, {Streamed::Verb::product, &vt, ReduceKind::sum, 1, out}, {}, context);
      expect_product(out, table(f, x, z), v, "product");
      ops::run_streamed(0, f, x, &zt, {Streamed::Verb::reduce, nullptr, ReduceKind::logsumexp, 1, sums}, {}, context);
      for (std::int64_t i = 0; i < m; ++i)
        ASSERT_TRUE(within(sums(i), folded(ReduceKind::logsumexp, table(f, x, z)[i]), 4e-6, Dtype::float32)) << n;
      ops::run_streamed(0, f, x, &zt, {Streamed::Verb::pairwise, nullptr, ReduceKind::sum, 1, pairs}, {}, context);
      expect_pairs(pairs, expected_pairs(f, x, z, 2e-6), "pairs");
    }
  });
}

/// Without z the points are those of x; outputs may be arrays of the device, of any strides.
TEST(Streamed, OutputsOnTheDevice) {
  constexpr std::int64_t kM = 70, kK = 4;
  const Expr f = parse("sum(abs(x-z))");
  on_streams([&](Context& context) {
    const DeviceStream stream(0);
    DeviceArrays arrays(stream, 1 << 20);
    const Array x = normal(Dtype::float32, {kM, kK}, 1), v = normal(Dtype::float32, {kM, 3}, 2),
                coef = normal(Dtype::float32, {2, kM}, 3);
    const Tensor vt = v, ct = coef;
    const auto swapped = [](Tensor t) {
      std::swap(t.strides[t.ndim() - 1], t.strides[t.ndim() - 2]);
      std::swap(t.shape[t.ndim() - 1], t.shape[t.ndim() - 2]);
      return t;
    };
    const Tensor pairs = arrays.take(Dtype::float32, {kM, kM}), product = arrays.take(Dtype::float32, {3, kM}),
                 values = arrays.take(Dtype::float32, {kM, 9}), indices = arrays.take(Dtype::int64, {9, kM}),
                 gradient = arrays.take(Dtype::float32, {2, kK, kM}), nearest = arrays.take(Dtype::int64, {kM});
    const auto run = [&](const Streamed& call) { ops::run_streamed(0, f, x, nullptr, call, {}, context); };
    run({Streamed::Verb::pairwise, nullptr, ReduceKind::sum, 1, swapped(pairs)});
    run({Streamed::Verb::product, &vt, ReduceKind::sum, 1, swapped(product)});
    run({Streamed::Verb::nearest, nullptr, ReduceKind::sum, 9, values, swapped(indices)});
    run({Streamed::Verb::gradient, &ct, ReduceKind::sum, 1, swapped(gradient)});
    run({Streamed::Verb::reduce, nullptr, ReduceKind::argmin, 1, nearest});
    const auto home = [&](const Tensor& t) { return arrays.download(t); };
    const Array k = home(pairs), p = home(product), d = home(values), i = home(indices), g = home(gradient),
                own = home(nearest);
    const auto expected = table(f, x, x);
    expect_product(swapped(p), expected, v, "product");
    Context host;
    const Array whole(Dtype::float32, {2, kM, kK});
    kernel_gradient(f, x, nullptr, ct, whole, {}, host);
    for (std::int64_t m = 0; m < kM; ++m) {
      EXPECT_EQ(own(m), static_cast<double>(m));
      EXPECT_EQ(i(0, m), static_cast<double>(m));
      EXPECT_EQ(d(m, 0), 0);
      for (std::int64_t n = 0; n < kM; ++n) ASSERT_NEAR(k(n, m), expected[m][n], 2e-6 * expected[m][n]);
      for (std::int64_t o = 0; o < 2; ++o)
        for (std::int64_t e = 0; e < kK; ++e) ASSERT_NEAR(g(o, e, m), whole(o, m, e), 2e-6 * kM * 3);
    }
  }, true);
}

TEST(Streamed, RefusalsComeBeforeAnythingIsWritten) {
  on_streams([&](Context& context) {
    const Array x = normal(Dtype::float32, {3, 6, 4}, 1), one = normal(Dtype::float32, {6, 4}, 1);
    const Array out(Dtype::float32, {3, 6, 6}), narrow(Dtype::float32, {6, 5});
    const Array scales = filled(Dtype::float64, {2}, {1, 2});
    const auto message = [&](const Array& points, const Array& to, const Arguments& arguments = {}) {
      return message_of([&] {
        ops::run_streamed(0, "sum(abs(x-z))*b", points, nullptr,
                          {Streamed::Verb::pairwise, nullptr, ReduceKind::sum, 1, to}, arguments, context);
      });
    };
    EXPECT_NE(message(x, out).find("x must have no batch axes"), std::string::npos) << message(x, out);
    Arguments arguments;
    arguments.params["b"] = scales.tensor();
    EXPECT_NE(message(one, out, arguments).find("b must have no batch axes"), std::string::npos);
    arguments.params["b"] = 1.0;
    EXPECT_NE(message(one, narrow, arguments).find("(6, 6)"), std::string::npos) << message(one, narrow, arguments);
    EXPECT_TRUE(out.untouched() && narrow.untouched());
  });
}

TEST(Streamed, ACancelledCallStopsBetweenSteps) {
  on_streams([&](Context& context) {
    const Array x = normal(Dtype::float32, {3000, 4}, 1), v = normal(Dtype::float32, {3000}, 2);
    const Array out(Dtype::float32, {3000});
    const Tensor vt = v;
    Arguments arguments;
    int asked = 0;
    arguments.progress = [&](double done, double total) {
      EXPECT_LE(done, total);
      return ++asked < 2;
    };
    if (context.state().own_costs().stream.memory == 0) context.state().own_costs().stream.memory = kMore;
    const Streamed call{Streamed::Verb::product, &vt, ReduceKind::sum, 1, out};
    EXPECT_THROW(ops::run_streamed(0, "exp(-sum(abs(x-z)))", x, nullptr, call, arguments, context), Cancelled);
    EXPECT_EQ(asked, 2);
  });
}

/// The emulator's memory is taken by others, as far as a small part; a GPU's is left alone.
TEST(Streamed, SmallerBlocksWhereMemoryIsFull) {
  on_cuda([&](TestContext& context) {
    if (!is_emulated()) return;
    const Array x = normal(Dtype::float32, {300, 4}, 1), v = normal(Dtype::float32, {300}, 2);
    const Array out(Dtype::float32, {300});
    const Tensor vt = v;
    const Expr f = parse("exp(-sum(abs(x-z)))");
    const Streamed call{Streamed::Verb::product, &vt, ReduceKind::sum, 1, out};
    Context& plain = context;
    ops::run_streamed(0, f, x, nullptr, call, {}, plain);  // compiled, with memory for that
    std::size_t free = 0, total = 0;
    {
      const CudaScope scope(0);
      check_cuda(cuda_driver()->memory_info(&free, &total), "test");
    }
    constexpr std::int64_t kLeft = 1 << 16;
    const DeviceMemory others(0, static_cast<std::int64_t>(free) - kLeft);
    context.state().own_costs().stream.memory = std::int64_t{1} << 20;
    context.state().own_costs().stream.piece = 512;
    ops::run_streamed(0, f, x, nullptr, call, {}, plain);
    expect_product(out, table(f, x, x), v, "with little memory");
    context.state().own_costs().stream.memory = 2048;
    const DeviceMemory rest(0, kLeft - 1024);
    EXPECT_THROW(ops::run_streamed(0, f, x, nullptr, call, {}, plain), DeviceMemoryError);
  });
}

}  // namespace
}  // namespace mercer
