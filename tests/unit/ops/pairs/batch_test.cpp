// Leading axes: broadcasting, parameters of each item, shared accumulations; bitwise independence of items and threads.
#include <atomic>

#include "core/sanitized.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// `out[batch]` against the oracle of each item; parameters are given per item.
void expect_batch(const Expr& f, const Tensor& x, const Tensor& z, const Tensor& out, double tolerance,
                  const std::function<Shape(const Shape&)>& x_item, const std::function<Shape(const Shape&)>& z_item,
                  const std::function<Extra(const Shape&)>& extra, const Expr& scale = {}) {
  const Shape batch(out.shape.begin(), out.shape.end() - 2);
  each_index(batch, [&](const Shape& index) {
    const Expected expected =
        expected_pairs(f, item(x, x_item(index)), item(z, z_item(index)), tolerance, scale, extra(index));
    expect_pairs(item(out, index), expected, f.to_text());
  });
}

TEST(Batch, LeadingAxesBroadcast) {
  for (Dtype dtype : kWide) {
    const Array x = normal(dtype, {3, 1, 11, 9}, 1), z = normal(dtype, {4, 21, 9}, 2);
    const Tensor zt = z;
    EXPECT_EQ(batch_shape("sum(x*z)", x, z), (Shape{3, 4}));
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {3, 4, 11, 21});
      pairwise("sum(abs(x-z))", x, &zt, out, {}, context);
      expect_batch(
          parse("sum(abs(x-z))"), x, z, out, unit(dtype),
          [](const Shape& b) {
            return Shape{b[0], 0};
          },
          [](const Shape& b) { return Shape{b[1]}; }, [](const Shape&) { return Extra{}; });
    });
  }
}

TEST(Batch, StridedLeadingAxes) {
  const Shape shape{2, 3, 7, 5};
  const Array x = normal(Dtype::float32, shape, 1, 1, {5, 10, 30, 1}),
              z = normal(Dtype::float32, shape, 2, 1, {-105, 35, 5, 1});
  const Array out(Dtype::float32, {2, 3, 7, 7}, {1, 2, 6, 42});  // pairs interleaved: the batch varies fastest
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    pairwise("sum(max(x-z,0))", x, &zt, out, {}, context);
    const auto same = [](const Shape& b) { return b; };
    expect_batch(parse("sum(max(x-z,0))"), x, z, out, 1e-6, same, same, [](const Shape&) { return Extra{}; });
  });
}

TEST(Batch, ParametersOfEachItem) {
  const Array x = normal(Dtype::float32, {9, 13}, 1), z = normal(Dtype::float32, {40, 13}, 2);
  const Tensor zt = z;
  const Array p = filled(Dtype::float64, {3, 1}, {1, 1.5, 2}), b = filled(Dtype::float32, {4}, {1, 2, 5, 1e30});
  Arguments arguments;
  arguments.params = {{"p", p.tensor()}, {"b", b.tensor()}};
  // p acts inside the reduction (as a power of the device: |log f| more), b in the epilogue alone.
  const Expr f = parse("exp(-sum(abs(x-z)^p)/b)");
  EXPECT_EQ(batch_shape(f, x, z, arguments), (Shape{3, 4}));
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {3, 4, 9, 40});
    pairwise(f, x, &zt, out, arguments, context);
    const auto none = [](const Shape&) { return Shape{}; };
    expect_batch(
        f, x, z, out, 1e-6, none, none,
        [&](const Shape& i) {
          return Extra{{{"p", p(i[0], 0)}, {"b", b(i[1])}}, {}, {}, {}, 0, 0};
        },
        parse("s = sum(abs(x-z)^p)/b; exp(-s)*(1+s)"));
  });
}

TEST(Batch, OuterProductOfBatchAndParameters) {
  const Array x = normal(Dtype::float64, {2, 5, 6}, 1), z = normal(Dtype::float64, {2, 7, 6}, 2);
  const Tensor zt = z;
  const Array theta = filled(Dtype::float64, {3, 1}, {0.5, 1, 4});
  Arguments arguments;
  arguments.params["b"] = theta.tensor();
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {3, 2, 5, 7});
    pairwise("exp(-sum(abs(x-z))/b)", x, &zt, out, arguments, context);
    const auto last = [](const Shape& b) { return Shape{b[1]}; };
    expect_batch(parse("exp(-sum(abs(x-z))/b)"), x, z, out, 1e-12, last, last, [&](const Shape& b) {
      return Extra{{{"b", theta(b[0], 0)}}, {}, {}, {}, 0, 0};
    });
  });
}

/// Both sides repeat along an axis that only the output has: every item is written.
TEST(Batch, RepeatedPointsFillEveryItem) {
  const Array x = normal(Dtype::float32, {5, 6}, 1), z = normal(Dtype::float32, {2, 7, 6}, 2);
  const auto repeated = [](const Array& a) {
    Tensor t = a.tensor();
    t.shape.insert(t.shape.begin(), 3);
    t.strides.insert(t.strides.begin(), 0);
    return t;
  };
  const Tensor zt = repeated(z);
  Tensor xt = x.tensor();
  xt.shape.insert(xt.shape.begin(), {3, 2});
  xt.strides.insert(xt.strides.begin(), {0, 0});
  Arguments arguments;
  arguments.params["b"] = 2.0;
  const Expr f = parse("exp(-sum(abs(x-z))/b)");
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {3, 2, 5, 7});
    pairwise(f, xt, &zt, out, arguments, context);
    expect_batch(
        f, x, z, out, 2e-6, [](const Shape&) { return Shape{}; }, [](const Shape& i) { return Shape{i[1]}; },
        [](const Shape&) {
          return Extra{{{"b", 2.0}}, {}, {}, {}, 0, 0};
        });
  });
}

TEST(Batch, ValuesPerPointAndZeroDimensionalParameters) {
  const Array x = normal(Dtype::float32, {2, 5, 6}, 1), z = normal(Dtype::float32, {7, 6}, 2);
  const Array row = normal(Dtype::float32, {2, 5}, 3), col = normal(Dtype::float64, {3, 1, 7}, 4),
              b = filled(Dtype::float32, {}, {2.5});
  const Tensor zt = z;
  Arguments arguments;
  arguments.row = row;
  arguments.col = col;
  arguments.params["b"] = b.tensor();
  const Expr f = parse("sum(abs(x-z)) + abs(row) + b*abs(col)");
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {3, 2, 5, 7});
    pairwise(f, x, &zt, out, arguments, context);
    expect_batch(
        f, x, z, out, 1e-6, [](const Shape& i) { return Shape{i[1]}; }, [](const Shape&) { return Shape{}; },
        [&](const Shape& i) {
          Extra extra{{{"b", 2.5}}, {}, {}, {}, 0, 0};
          for (int m = 0; m < 5; ++m) extra.row.push_back(row(i[1], m));
          for (int n = 0; n < 7; ++n) extra.col.push_back(col(i[0], 0, n));
          return extra;
        });
  });
}

TEST(Batch, EmptyAxes) {
  const Array x = normal(Dtype::float32, {0, 5, 6}, 1), z = normal(Dtype::float32, {7, 6}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {0, 5, 7});
    EXPECT_NO_THROW(pairwise("sum(x*z)", x, &zt, out, {}, context));
    EXPECT_TRUE(out.untouched());
  });
}

/// Each item alone gives the same bits, whatever the others hold, parameters without a normal reciprocal included.
TEST(Batch, ItemsDoNotInfluenceEachOther) {
  for (Dtype dtype : kWide)
    for (const char* text : {"exp(-sum(abs(x-z))/b)", "exp(-sqrt(sum((x-z)^2))/b)", "sum(abs(x-z)/b)",
                             "max(abs(x-z)/b) + b", "sum(abs(x-z)^1.3)/b"}) {
      Array x = normal(dtype, {2, 1, 19, 70}, 1), z = normal(dtype, {2, 1, 61, 70}, 2);
      x.set({0, 0, 3, 3}, kNan);
      const std::vector<double> values{0, 2.5, kInf, 1e-42, kNan, 7, 3e38, -1e-39};
      const int count = static_cast<int>(values.size());
      const Array b = filled(dtype, {count}, values);
      Arguments all;
      all.params["b"] = b.tensor();
      const Tensor zt = z;
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {2, count, 19, 61});
        pairwise(text, x, &zt, out, all, context);
        for (int outer = 0; outer < 2; ++outer)
          for (int inner = 0; inner < count; ++inner) {
            const Array alone(dtype, {19, 61}), part = copy(item(out, {outer, inner}), dtype);
            Arguments one;
            one.params["b"] = item(b, {inner});
            const Tensor zi = item(z, {outer, 0});
            pairwise(text, item(x, {outer, 0}), &zi, alone, one, context);
            EXPECT_TRUE(same_bits(alone, part)) << text << " b = " << values[inner];
            one.params["b"] = b(inner);
            pairwise(text, item(x, {outer, 0}), &zi, alone, one, context);
            EXPECT_TRUE(same_bits(alone, part)) << text << " b = " << values[inner] << ", a number";
          }
      });
    }
}

/// A number in an exponent becomes part of the program; an array does not, however short it is.
TEST(Batch, ExponentsInAnArrayDoNotInfluenceEachOther) {
  const Array x = normal(Dtype::float32, {19, 70}, 1), z = normal(Dtype::float32, {61, 70}, 2);
  const Array p = filled(Dtype::float32, {4}, {1, 0, 1.3, kNan});
  Arguments all, one;
  all.params["p"] = p.tensor();
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {4, 19, 61});
    pairwise("sum(abs(x-z)^p)", x, &zt, out, all, context);
    for (int i = 0; i < 4; ++i) {
      Tensor single = item(p, {i});
      single.shape = single.strides = {1};
      one.params["p"] = single;
      const Array alone(Dtype::float32, {1, 19, 61});
      pairwise("sum(abs(x-z)^p)", x, &zt, alone, one, context);
      EXPECT_TRUE(same_bits(copy(item(alone, {0}), Dtype::float32), copy(item(out, {i}), Dtype::float32)));
    }
  });
}

/// u^0 is 1 for every u, also where its logarithm is infinite.
TEST(Batch, AnExponentOfZeroInAnArray) {
  for (Dtype dtype : kWide) {
    Array x = normal(dtype, {4, 1}, 1), z = normal(dtype, {5, 1}, 2);
    x.set({1, 0}, kInf);
    z.set({2, 0}, x(0, 0));
    const Array p = filled(dtype, {1}, {0});
    Arguments arguments;
    arguments.params["p"] = p.tensor();
    const Tensor zt = z;
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {1, 4, 5});
      pairwise("sum(abs(x-z)^p)", x, &zt, out, arguments, context);
      each_index({1, 4, 5}, [&](const Shape& i) { EXPECT_EQ(read(out, i), 1) << i[1] << "," << i[2]; });
    });
  }
}

/// Every operation on a problem of several blocks, its outputs side by side.
std::vector<char> all_results(Dtype dtype, TestContext& context) {
  const Array x = normal(dtype, {3, 130, 20}, 1), z = normal(dtype, {3, 4500, 20}, 2),
              small = normal(dtype, {3, 150, 20}, 3);
  const Array v = normal(dtype, {4500, 3}, 4), coef = normal(dtype, {2, 150}, 5);
  const Tensor zt = z, st = small;
  const Formula f("exp(-sum(abs(x-z))/9)");
  std::vector<char> bytes;
  const auto keep = [&](const Array& a) { bytes.insert(bytes.end(), a.bytes().begin(), a.bytes().end()); };
  const Array k(dtype, {3, 130, 150}), same(dtype, {3, 150, 150}), y(dtype, {3, 130, 3}), g(dtype, {3, 2, 130, 20});
  pairwise(f, x, &st, k, {}, context);
  pairwise(f, small, nullptr, same, {}, context);
  kernel_product(f, x, &zt, v, y, {}, context);
  kernel_gradient(f, x, &st, coef, g, {}, context);
  for (const Array* a : {&k, &same, &y, &g}) keep(*a);
  for (ReduceKind kind : {ReduceKind::sum, ReduceKind::max, ReduceKind::argmin, ReduceKind::logsumexp}) {
    const Array r(kind == ReduceKind::argmin ? Dtype::int64 : dtype, {3, 130});
    kernel_reduce(f, x, &zt, kind, r, {}, context);
    keep(r);
  }
  const Array values(dtype, {3, 130, 5}), indices(Dtype::int64, {3, 130, 5});
  knn(f, x, &zt, 5, values, indices, {}, context);
  keep(values);
  keep(indices);
  return bytes;
}

/// Sums over n are cut into the same ranges whatever else the batch holds.
TEST(Batch, FoldsOfAnItemAloneGiveTheSameBits) {
  for (Dtype dtype : kWide) {
    const Array x = normal(dtype, {9, 130, 20}, 1), z = normal(dtype, {9, 4500, 20}, 2),
                v = normal(dtype, {4500, 3}, 3);
    const Tensor zt = z, x0 = item(x, {0}), z0 = item(z, {0});
    const Formula f("exp(-sum(abs(x-z))/9)");
    on_each_target([&](TestContext& context) {
      const Array all(dtype, {9, 130, 3}), one(dtype, {130, 3}), sums(dtype, {9, 130}), sum(dtype, {130});
      kernel_product(f, x, &zt, v, all, {}, context);
      kernel_product(f, x0, &z0, v, one, {}, context);
      EXPECT_TRUE(same_bits(one, copy(item(all, {0}), dtype)));
      for (ReduceKind kind : {ReduceKind::sum, ReduceKind::logsumexp}) {
        kernel_reduce(f, x, &zt, kind, sums, {}, context);
        kernel_reduce(f, x0, &z0, kind, sum, {}, context);
        EXPECT_TRUE(same_bits(sum, copy(item(sums, {0}), dtype))) << name_of(kind);
      }
    });
  }
}

TEST(Batch, BitsDoNotDependOnThreadsNorOnTheRun) {
  const std::vector<int> counts = kSanitized ? std::vector{3} : std::vector{1, 2, 3, 7};
  for (Dtype dtype : kWide)
    on_each_target([&](TestContext& context) {
      context.set_threads(1);
      const std::vector<char> first = all_results(dtype, context);
      for (int threads : counts) {
        context.set_threads(threads);
        EXPECT_TRUE(all_results(dtype, context) == first) << threads << " threads";
      }
    });
}

TEST(Batch, ManyItemsRunAcrossThreads) {
  const Array x = normal(Dtype::float32, {40, 6, 5}, 1), z = normal(Dtype::float32, {40, 9, 5}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array one(Dtype::float32, {40, 6, 9}), three(Dtype::float32, {40, 6, 9});
    context.set_threads(1);
    pairwise("sum(abs(x-z))", x, &zt, one, {}, context);
    context.set_threads(3);
    pairwise("sum(abs(x-z))", x, &zt, three, {}, context);
    EXPECT_TRUE(same_bits(one, three));
    const auto same = [](const Shape& b) { return b; };
    expect_batch(parse("sum(abs(x-z))"), x, z, three, 1e-6, same, same, [](const Shape&) { return Extra{}; });
  });
}

}  // namespace
}  // namespace mercer
