// What preconditioners say of themselves: of full rank they are the matrix, whose inverse, root, determinant and
// diagonal are known; and what rpcholesky makes of matrices without full rank.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "device/lapack.h"
#include "mercer/linalg.h"
#include "ops/device_arrays.h"
#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using linalg::Operator;

constexpr double kRidge = 0.5;
const char* const kGauss = "exp(-sum(square(x-z))/2)";

using Make = std::function<linalg::Preconditioner(const Tensor& points, const Tensor& whole, const Queue&, Context&)>;

Operator kernel_on(const Tensor& points, const Queue& queue, Context& context) {
  Arguments arguments;
  arguments.queue = queue;
  return linalg::kernel_operator(kGauss, points, kRidge, arguments, context);
}
Make by_rpcholesky(std::int64_t rank, std::int64_t block) {
  return [=](const Tensor& points, const Tensor&, const Queue& queue, Context& context) {
    return linalg::rpcholesky_preconditioner(kernel_on(points, queue, context), rank, kRidge, {.block = block},
                                             context);
  };
}
Make by_stored_rows(std::int64_t rank) {
  return [=](const Tensor&, const Tensor& whole, const Queue& queue, Context& context) {
    return linalg::rpcholesky_preconditioner(linalg::matrix_operator(whole, queue, context), rank, kRidge,
                                             {.seed = 5, .ridge_in_rows = true}, context);
  };
}
Make by_size(std::int64_t rank) {
  return [=](const Tensor& points, const Tensor&, const Queue& queue, Context& context) {
    return linalg::pivoted_cholesky_preconditioner(kernel_on(points, queue, context), rank, kRidge, context);
  };
}

/// body(preconditioner, views, queue) on the CPU or a device: views of `inputs` and `outputs`.
template <class Body>
void run_with(const Make& make, const Array& points, const Array& whole, std::vector<const Tensor*> inputs,
              std::vector<const Tensor*> outputs, TestContext& context, const Body& body) {
  Context& plain = context;
  const Tensor x = points, k = whole;
  if (!context.on_cuda()) return body(make(x, k, {}, plain), [](const Tensor& t) { return t; }, Queue{});
  inputs.push_back(&x);
  inputs.push_back(&k);
  take_linalg_to_cuda(std::move(inputs), std::move(outputs), {}, context,
                      [&](const CudaCall& at, const linalg::Options& queued) {
                        body(make(at(x), at(k), queued.queue, plain), [&](const Tensor& t) { return at(t); },
                             queued.queue);
                      });
}

template <class Body>
void on_cpu_and_cuda(const Body& body) {
  {
    TestContext context(Target::interpreter);
    body(context);
  }
  on_cuda(body);
}

class Preconditioners : public ::testing::Test {
 protected:
  void SetUp() override { MERCER_NEEDS_LAPACK(); }
};

/// s_i k(i, j) s_j + ridge.
double entry(const Array& k, std::int64_t i, std::int64_t j, const Array* w, double ridge) {
  const double weight = w != nullptr ? std::sqrt((*w)(i) * (*w)(j)) : 1;
  return weight * k(i, j) + (i == j ? ridge : 0);
}

/// What is left of `right` when the matrix times `left` is taken away, at most.
double gap(const Array& k, const Array* w, const std::vector<double>& ridges, const Array& left, const Array& right) {
  double most = 0;
  for (std::int64_t c = 0; c < left.shape()[1]; ++c)
    for (std::int64_t i = 0; i < k.shape()[0]; ++i) {
      double sum = right(i, c);
      for (std::int64_t j = 0; j < k.shape()[0]; ++j)
        sum -= entry(k, i, j, w, ridges[ridges.size() > 1 ? static_cast<std::size_t>(c) : 0]) * left(j, c);
      most = std::max(most, std::abs(sum));
    }
  return most;
}

double logdet_of(const Array& k, double ridge) {
  const std::int64_t n = k.shape()[0];
  std::vector<double> l(static_cast<std::size_t>(n * n), 0);
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = j; i < n; ++i) {
      double value = entry(k, i, j, nullptr, ridge);
      for (std::int64_t p = 0; p < j; ++p) value -= l[i + p * n] * l[j + p * n];
      l[i + j * n] = i == j ? std::sqrt(value) : value / l[j + j * n];
      if (i == j) sum += std::log(value);
    }
  return sum;
}

TEST_F(Preconditioners, OfFullRankAreTheMatrix) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 20;
    for (const Dtype dtype : kWide) {
      Array points(dtype, {n, 1}, {2, 1}), k(dtype, {n, n}), whole(dtype, {n, n});
      for (std::int64_t i = 0; i < n; ++i) points.set({i, 0}, 1.3 * double(i));
      pairwise(kGauss, points, nullptr, k);
      each_index(k.shape(), [&](const Shape& at) { whole.set(at, k(at[0], at[1]) + (at[0] == at[1] ? kRidge : 0)); });
      // The eigenvalues of k are from 0.1 to 2.
      const double lost = 400 * (dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24);
      const std::vector<double> path = {0.5, 1.0, 8.0};
      Array w = normal(dtype, {n}, 3, 1, {2});
      for (std::int64_t i = 0; i < n; ++i) w.set({i}, i == 4 ? 0 : std::abs(w(i)));
      int turn = 0;
      for (const Make& make : {by_rpcholesky(n, 0), by_rpcholesky(n + 4, 1), by_stored_rows(n), by_size(n)})
        for (const std::int64_t columns : {3, 70}) {
          SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), turn++, columns));
          const Array v = normal(dtype, {n, columns}, 7), solved(dtype, {n, columns}, {1, n + 2});
          const Array root(dtype, {n, columns}), twice(dtype, {n, columns});
          const Array few = normal(dtype, {n, 3}, 8), each(dtype, {n, 3}), diagonal(dtype, {n});
          const Array diagonals(dtype, {n, 3}, {5, 1}), of_weights(dtype, {n, columns});
          const Tensor tv = v, ts = solved, tr = root, tt = twice, tf = few, te = each, td = diagonal, tp = diagonals,
                       tw = w, to = of_weights;
          run_with(make, points, whole, {&tv, &tf, &tw}, {&ts, &tr, &tt, &te, &td, &tp, &to}, context,
                   [&](const linalg::Preconditioner& p, const auto& at, const Queue& queue) {
                     EXPECT_EQ(p.rank, n);
                     p.solve(at(tv), at(ts), queue);
                     p.multiply_root(at(tv), at(tr), queue);
                     p.multiply_root(at(tr), at(tt), queue);
                     p.diagonal(at(td), queue);
                     EXPECT_NEAR(p.logdet()[0], logdet_of(k, kRidge), n * lost);
                     const linalg::Preconditioner other = p.with_ridges(path);
                     other.solve(at(tf), at(te), queue);
                     other.diagonal(at(tp), queue);
                     EXPECT_NEAR(other.logdet()[2], logdet_of(k, 8), n * lost);
                     EXPECT_EQ(other.columns, 3);
                     Context& plain = context;
                     p.weighted(at(tw), queue, plain).solve(at(tv), at(to), queue);
                   });
          EXPECT_LE(gap(k, nullptr, {kRidge}, solved, v), 10 * lost);
          EXPECT_LE(gap(k, nullptr, {kRidge}, v, twice), 10 * lost);
          EXPECT_LE(gap(k, nullptr, path, each, few), 10 * lost);
          EXPECT_LE(gap(k, &w, {kRidge}, of_weights, v), 10 * lost);
          for (std::int64_t i = 0; i < n; ++i) {
            EXPECT_NEAR(diagonal(i), k(i, i) + kRidge, lost);
            for (std::int64_t j = 0; j < 3; ++j) EXPECT_NEAR(diagonals(i, j), k(i, i) + path[j], 8 * lost);
          }
        }
    }
  });
}

/// One call of `verb` before the capture, on another stream, then captured, and refused where there was none.
using Verb = void (linalg::Preconditioner::*)(const Tensor&, const Tensor&, const Queue&) const;
void expect_captured(const linalg::Preconditioner& p, Verb verb, std::int64_t columns, TestContext& context) {
  const DeviceStream stream, before;
  DeviceArrays arrays(stream, 1 << 17);
  const Tensor v = arrays.take(p.dtype, {p.order, columns}), out = arrays.take(p.dtype, {p.order, columns});
  const Queue queue{.stream = static_cast<CuStream>(stream)}, warm{.stream = static_cast<CuStream>(before)};
  arrays.upload(v, normal(p.dtype, {p.order, columns}, 1));
  arrays.poison(out);
  stream.wait();
  std::string refused;
  Context& plain = context;
  const Tensor info = arrays.take(Dtype::int64, {columns});
  const Operator identity{p.order, p.dtype, [](const Tensor&, const Tensor&) {}, p.device, queue};
  { const Recording recording(stream, [&] { refused = message_of([&] { (p.*verb)(v, out, queue); }); }); }
  EXPECT_NE(refused.find("call once before a CUDA graph is captured"), std::string::npos) << refused;
  if (verb == &linalg::Preconditioner::solve) {
    const Recording recording(stream, [&] {
      const linalg::CgOptions options{.most_products = 5, .preconditioner = &p, .info = &info};
      refused = message_of([&] { linalg::cg(identity, v, out, options, plain); });
    });
    EXPECT_NE(refused.find("cg: a preconditioner puts numbers on its device"), std::string::npos) << refused;
  }
  (p.*verb)(v, out, warm);
  before.wait();
  const Recording recording(stream, [&] { (p.*verb)(v, out, queue); });
  for (const unsigned seed : {2u, 3u}) {
    const Array next = normal(p.dtype, {p.order, columns}, seed);
    arrays.upload(v, next);
    arrays.poison(out);
    recording.play();
    const Array played = arrays.download(out);
    arrays.poison(out);
    (p.*verb)(v, out, queue);
    const Array called = arrays.download(out);
    // Products of many columns are other kernels in a call; p is at most 6 k + 2, by ridges from 0.5 on.
    const double lost = columns < 9 ? 0 : 1e3 * (p.dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24);
    each_index(played.shape(), [&](const Shape& at) {
      EXPECT_NEAR(played(at[0], at[1]), called(at[0], at[1]), lost);
    });
  }
}

TEST_F(Preconditioners, AWarmCallIsCaptured) {
  on_cuda([](TestContext& context) {
    const DeviceStream stream;
    DeviceArrays arrays(stream, 1 << 12);
    Context& plain = context;
    const Queue queue{.stream = static_cast<CuStream>(stream)};
    for (const Dtype dtype : kWide) {
      Array halves(dtype, {21});
      for (std::int64_t i = 0; i < 21; ++i) halves.set({i}, 0.5);
      const Tensor points = arrays.take(normal(dtype, {21, 2}, 5)), w = arrays.take(halves);
      const linalg::Preconditioner p = by_rpcholesky(7, 0)(points, points, queue, plain);
      for (const Verb verb : {&linalg::Preconditioner::solve, &linalg::Preconditioner::multiply_root}) {
        expect_captured(p, verb, 70, context);
        expect_captured(p.with_ridges({0.5, 1, 8}), verb, 3, context);
        expect_captured(p.weighted(w, queue, plain), verb, 1, context);
      }
    }
  });
}

TEST_F(Preconditioners, EndWhereNothingIsLeft) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 36;
    for (const Dtype dtype : kWide) {
      const Array few = normal(dtype, {6, 2}, 8);
      Array points(dtype, {n, 2}), nothing(dtype, {n, n}), ones(dtype, {n, n});
      each_index(points.shape(), [&](const Shape& at) { points.set(at, few(at[0] % 6, at[1])); });
      each_index(ones.shape(), [&](const Shape& at) {
        const double ridge = at[0] == at[1] ? kRidge : 0;
        nothing.set(at, ridge);
        ones.set(at, ridge + (at[0] < 9 && at[1] < 9 ? 1e-3 : 0));  // zeros on the diagonal of k
      });
      const auto rank_of = [&](const Make& make, const Array& whole) {
        std::int64_t rank = 0;
        run_with(make, points, whole, {}, {}, context,
                 [&](const linalg::Preconditioner& p, const auto&, const Queue&) { rank = p.rank; });
        return rank;
      };
      EXPECT_EQ(rank_of(by_rpcholesky(12, 0), ones), 6);
      EXPECT_EQ(rank_of(by_rpcholesky(12, 12), ones), 6);
      EXPECT_EQ(rank_of(by_size(12), ones), 6);
      EXPECT_EQ(rank_of(by_stored_rows(12), ones), 1);
      EXPECT_EQ(rank_of(by_stored_rows(12), nothing), 0);
    }
  });
}

TEST_F(Preconditioners, Refuse) {
  on_cpu_and_cuda([](TestContext& context) {
    const Array points = normal(Dtype::float32, {9, 2}, 11);
    Array holed(Dtype::float32, {9, 9}), negative(Dtype::float32, {9, 9}), crossed(Dtype::float32, {9, 9});
    each_index(holed.shape(), [&](const Shape& at) {
      const bool is_diagonal = at[0] == at[1];
      holed.set(at, at[0] + at[1] == 7 ? kNan : is_diagonal ? 2 : 0);
      negative.set(at, is_diagonal ? at[0] == 3 ? -1 : 2 : 0);
      crossed.set(at, is_diagonal ? 1 + kRidge : 2);
    });
    const auto row = [&](const std::string& words, const Make& make, const Array& whole) {
      const std::string message = message_of([&] {
        run_with(make, points, whole, {}, {}, context, [](const linalg::Preconditioner&, const auto&, const Queue&) {});
      });
      EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
    };
    row("rpcholesky: rank must be positive. Received 0.", by_stored_rows(0), holed);
    row("rpcholesky: products with a must be finite", by_stored_rows(9), holed);
    row("rpcholesky: a less the ridge must be positive semi-definite. Received a matrix with -1.5 on its diagonal",
        by_stored_rows(9), negative);
    row("left on its diagonal", by_stored_rows(9), crossed);
    row("rpcholesky: block must be positive. Received -2.", by_rpcholesky(9, -2), holed);
    row("rpcholesky: is offered for matrices and for kernels on points",
        [](const Tensor&, const Tensor&, const Queue&, Context& plain) {
          const Operator a{9, Dtype::float64, [](const Tensor&, const Tensor&) {}};
          return linalg::rpcholesky_preconditioner(a, 3, kRidge, {}, plain);
        },
        holed);
  });
  const Array v = normal(Dtype::float64, {9, 2}, 1), out(Dtype::float64, {9, 2});
  EXPECT_NE(message_of([&] { linalg::Preconditioner{.order = 9, .dtype = Dtype::float64}.solve(v, out); })
                .find("it must come from rpcholesky, nystrom or pivoted_cholesky"),
            std::string::npos);
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace mercer
