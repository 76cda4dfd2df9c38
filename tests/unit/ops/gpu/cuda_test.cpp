// What only CUDA has: parameters on the device, scratch memory handed in, streams, graphs, mixed devices, sizes past
// 2^31, several devices. Values of every operation on small problems are checked on all targets in the other files.
#include <algorithm>
#include <thread>

#include "mercer/compile.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kLaplace = "exp(-sum(abs(x-z))/b)";

/// An array's memory on a device.
class DeviceArray {
 public:
  explicit DeviceArray(const Array& host, int device = 0)
      : host_(host), memory_(device, std::max<std::int64_t>(1, bytes())), stream_(device) {
    set(host);
  }
  Tensor tensor() const {
    Tensor t = host_;
    t.data = memory_.data() + (static_cast<char*>(t.data) - host_.bytes().data());
    t.device = {DeviceKind::cuda, memory_.device()};
    return t;
  }
  operator Tensor() const { return tensor(); }  // NOLINT(google-explicit-constructor)
  /// Other values of the same layout, in place when it returns.
  void set(const Array& host) {
    stream_.upload(memory_.at(), host.bytes().data(), bytes());
    stream_.wait();
  }
  /// What lies there now; the streams that write it have been waited for.
  Array back() const {
    Array now = host_;
    stream_.download(now.bytes().data(), memory_.at(), bytes());
    return now;
  }
  CuPointer pointer() const { return memory_.at(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(host_.bytes().size()); }

 private:
  Array host_;
  DeviceMemory memory_;
  DeviceStream stream_;
};

Arguments on_stream(CuStream stream, std::map<std::string, Argument> params = {}) {
  Arguments arguments;
  arguments.params = std::move(params);
  arguments.queue.stream = stream;
  return arguments;
}

std::int64_t free_memory() {
  const CudaScope scope(0);
  std::size_t free = 0, total = 0;
  check_cuda(cuda_driver()->memory_info(&free, &total), "test");
  return static_cast<std::int64_t>(free);
}

/// Keeps a stream busy for some ten milliseconds.
class SlowWork {
 public:
  void put(const DeviceStream& stream) const {
    for (int i = 0; i < 40; ++i) stream.fill(memory_.at(), 0, memory_.size());
  }

 private:
  DeviceMemory memory_{0, std::int64_t{1} << 30};
};

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_wanted("cuda")) GTEST_SKIP() << "MERCER_TEST_TARGETS does not name cuda";
    if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
    stream_ = std::make_unique<DeviceStream>();
  }
  const CudaDriver& driver() const { return need_cuda("test"); }
  const DeviceStream& stream() const { return *stream_; }

  Context context_;

 private:
  std::unique_ptr<DeviceStream> stream_;
};

Expected laplace_values(const Tensor& x, const Tensor& z, double b) {
  Extra extra;
  extra.params["b"] = b;
  return expected_pairs(parse(kLaplace), x, z, unit(x.dtype), parse("s = sum(abs(x-z))/b; exp(-s)*(1+s)"), extra);
}

// ---- parameters -----------------------------------------------------------------------------------------------------

TEST_F(Cuda, ParametersOfEveryTypeOnTheDevice) {
  for (Dtype dtype : kWide)
    for (Dtype param : {Dtype::float32, Dtype::float64, Dtype::int64}) {
      const Array hx = normal(dtype, {13, 9}, 1), hz = normal(dtype, {70, 9}, 2);
      const DeviceArray x(hx), z(hz), b(filled(param, {}, {7})), out(Array(dtype, {13, 70}));
      const Tensor zt = z;
      pairwise(kLaplace, x, &zt, out, on_stream(stream(), {{"b", b.tensor()}}), context_);
      stream().wait();
      expect_pairs(out.back(), laplace_values(hx, hz, 7), name_of(param));
    }
}

TEST_F(Cuda, BatchedParametersOnTheDeviceAndOnTheHostGiveTheSameBits) {
  const Array hx = normal(Dtype::float32, {2, 13, 9}, 1), hz = normal(Dtype::float32, {70, 9}, 2);
  const Array hb = filled(Dtype::float64, {4, 1}, {1, 2.5, 9, 1e30}), hp = filled(Dtype::float32, {2}, {1.3, 2});
  const DeviceArray x(hx), z(hz), b(hb), p(hp);
  const Tensor zt = z;
  const Expr f = parse("exp(-sum(abs(x-z)^p)/b)");
  std::vector<Array> results;
  const std::map<std::string, Argument> places[] = {{{"b", b.tensor()}, {"p", p.tensor()}},
                                                    {{"b", hb.tensor()}, {"p", hp.tensor()}},
                                                    {{"b", b.tensor()}, {"p", hp.tensor()}}};
  for (const auto& params : places) {
    const DeviceArray out(Array(Dtype::float32, {4, 2, 13, 70}));
    pairwise(f, x, &zt, out, on_stream(stream(), params), context_);
    stream().wait();
    results.push_back(out.back());
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
  each_index({4, 2}, [&](const Shape& i) {
    const Extra extra{{{"b", hb(i[0], 0)}, {"p", hp(i[1])}}, {}, {}, {}, 0, 0};
    expect_pairs(item(results[0], i),
                 expected_pairs(f, item(hx, {i[1]}), hz, 1e-6, parse("s = sum(abs(x-z)^p)/b; exp(-s)*(1+s)"), extra),
                 "batch");
  });
}

/// More values of the host than one launch carries.
TEST_F(Cuda, ManyBatchedParametersOfTheHost) {
  constexpr std::int64_t kItems = 1001;
  std::vector<double> values;
  for (std::int64_t i = 0; i < kItems; ++i) values.push_back(1 + static_cast<double>(i) * 0.01);
  const Array hx = normal(Dtype::float32, {3, 4}, 1), hz = normal(Dtype::float32, {5, 4}, 2),
              b = filled(Dtype::float64, {kItems}, values);
  const DeviceArray x(hx), z(hz), out(Array(Dtype::float32, {kItems, 3, 5}));
  const Tensor zt = z;
  pairwise(kLaplace, x, &zt, out, on_stream(stream(), {{"b", b.tensor()}}), context_);
  stream().wait();
  const Array result = out.back();
  for (std::int64_t i = 0; i < kItems && !HasFatalFailure(); ++i)
    expect_pairs(item(result, {i}), laplace_values(hx, hz, values[static_cast<std::size_t>(i)]), "item");
}

// ---- scratch memory -------------------------------------------------------------------------------------------------

TEST_F(Cuda, ScratchMemoryOfTheCallerAndOfThePoolGiveTheSameBits) {
  const DeviceArray x(normal(Dtype::float32, {130, 20}, 1)), v(normal(Dtype::float32, {130, 3}, 2));
  const DeviceArray pool(Array(Dtype::float32, {130, 3})), own(Array(Dtype::float32, {130, 3}));
  kernel_product(kLaplace, x, nullptr, v, pool, on_stream(stream(), {{"b", 9.0}}), context_);
  PoisonedScratch scratch;
  Arguments arguments = on_stream(stream(), {{"b", 9.0}});
  arguments.queue.allocate = [&](std::int64_t bytes) { return scratch.take(bytes, stream()); };
  kernel_product(kLaplace, x, nullptr, v, own, arguments, context_);
  stream().wait();
  scratch.check(stream());
  EXPECT_GT(scratch.bytes(), 0);
  EXPECT_TRUE(same_bits(pool.back(), own.back()));
}

TEST_F(Cuda, UselessScratchMemoryIsRefused) {
  const DeviceArray x(normal(Dtype::float32, {13, 90}, 1)), out(Array(Dtype::float32, {13, 13}));
  const DeviceMemory memory(0, 1 << 20);
  for (void* place : {static_cast<void*>(nullptr), static_cast<void*>(memory.data() + 4)}) {
    Arguments arguments = on_stream(stream());
    arguments.queue.allocate = [&](std::int64_t) { return place; };
    const std::string message = message_of([&] { pairwise("sum(abs(x-z))", x, nullptr, out, arguments, context_); });
    EXPECT_NE(message.find("pairwise: workspace memory must lie at a multiple"), std::string::npos) << message;
  }
  Arguments arguments = on_stream(stream());
  arguments.queue.allocate = [](std::int64_t) -> void* { throw std::runtime_error("none left"); };
  EXPECT_THROW(pairwise("sum(abs(x-z))", x, nullptr, out, arguments, context_), std::runtime_error);
  stream().wait();
  EXPECT_TRUE(out.back().untouched());
}

// ---- streams --------------------------------------------------------------------------------------------------------

/// Every operation on device arrays, by name, as one call on a queue.
struct Calls {
  DeviceArray x, z, v, coef, amplitude, pairs, product, best, values, indices, gradient, field;
  std::map<std::string, Argument> params = {{"b", 9.0}};

  explicit Calls(Dtype dtype = Dtype::float32, std::int64_t m = 33, std::int64_t n = 150, std::int64_t k = 12,
                 int device = 0)
      : x(normal(dtype, {m, k}, 1), device), z(normal(dtype, {n, k}, 2), device),
        v(normal(dtype, {n, 3}, 3), device), coef(normal(dtype, {2, n}, 4), device),
        amplitude(normal(dtype, {m, n}, 5), device), pairs(Array(dtype, {m, n}), device),
        product(Array(dtype, {m, 3}), device), best(Array(Dtype::int64, {m}), device),
        values(Array(dtype, {m, 4}), device), indices(Array(Dtype::int64, {m, 4}), device),
        gradient(Array(dtype, {2, m, k}), device), field(Array(dtype, {2, m, k}), device) {}

  using Call = std::function<void(const Queue&, Context&)>;
  std::vector<std::pair<std::string, Call>> all() const {
    const auto with = [this](const Queue& queue) {
      Arguments arguments;
      arguments.params = params;
      arguments.queue = queue;
      return arguments;
    };
    const auto second = [this] { return z.tensor(); };
    return {{"pairwise", [=, this](const Queue& q, Context& c) {
               const Tensor zt = second();
               mercer::pairwise(kLaplace, x, &zt, pairs, with(q), c);
             }},
            {"kernel_product", [=, this](const Queue& q, Context& c) {
               const Tensor zt = second();
               mercer::kernel_product(kLaplace, x, &zt, v, product, with(q), c);
             }},
            {"kernel_reduce", [=, this](const Queue& q, Context& c) {
               const Tensor zt = second();
               mercer::kernel_reduce(kLaplace, x, &zt, ReduceKind::argmax, best, with(q), c);
             }},
            {"knn", [=, this](const Queue& q, Context& c) {
               const Tensor zt = second();
               mercer::knn(kLaplace, x, &zt, 4, values, indices, with(q), c);
             }},
            {"kernel_gradient", [=, this](const Queue& q, Context& c) {
               const Tensor zt = second();
               mercer::kernel_gradient(kLaplace, x, &zt, coef, gradient, with(q), c);
             }},
            {"gradient_field", [=, this](const Queue& q, Context& c) {
               const Expr phi = sign(points().x - points().z) / param("b");
               mercer::gradient_field(phi, x, z, amplitude, coef, field, with(q), c);
             }}};
  }
  /// Bytes of all outputs.
  std::vector<std::vector<char>> results() const {
    std::vector<std::vector<char>> bytes;
    for (const DeviceArray* out : outputs()) bytes.push_back(out->back().bytes());
    return bytes;
  }
  std::vector<const DeviceArray*> outputs() const {
    return {&pairs, &product, &best, &values, &indices, &gradient, &field};
  }
};

/// The results of all calls, waited for one by one.
std::vector<std::vector<char>> results_of(const Calls& calls, Context& context) {
  const DeviceStream stream;
  for (const auto& [name, call] : calls.all()) {
    call({stream, {}}, context);
    stream.wait();
  }
  return calls.results();
}

TEST_F(Cuda, CallsStandInTheOrderOfTheirStream) {
  Calls calls;
  const std::vector<std::vector<char>> wanted = results_of(calls, context_);
  const Array x = calls.x.back(), spoiled = filled(Dtype::float32, x.shape(), std::vector<double>(33 * 12, kNan));
  const DeviceArray true_x(x);
  const SlowWork slow;
  for (const auto& [name, call] : calls.all()) {
    calls.x.set(spoiled);
    slow.put(stream());
    stream().copy(calls.x.pointer(), true_x.pointer(), calls.x.bytes());
    call({stream(), {}}, context_);
    EXPECT_EQ(driver().stream_query(stream()), kCuNotReady) << name << " waited";
    stream().wait();
  }
  EXPECT_EQ(calls.results(), wanted);
}

TEST_F(Cuda, TheDefaultStreamServesToo) {
  Calls calls;
  const std::vector<std::vector<char>> wanted = results_of(calls, context_);
  const CudaScope scope(0);
  for (const auto& [name, call] : calls.all()) call({}, context_);
  check_cuda(driver().stream_synchronize(nullptr), "test");
  EXPECT_EQ(calls.results(), wanted);
}

TEST_F(Cuda, SeveralThreadsCallAtOnce) {
  const Calls first;
  const std::vector<std::vector<char>> wanted = results_of(first, context_);
  context_.clear_plans();
  std::atomic<int> wrong{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 6; ++user)
    users.emplace_back([&, user] {
      const Calls mine;
      for (int round = 0; round < 4; ++round) {
        if (user == 0) context_.clear_plans();
        if (results_of(mine, context_) != wanted) ++wrong;
      }
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(wrong, 0);
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

TEST_F(Cuda, RecordedCallsRunAgainOnNewData) {
  for (bool own_scratch : {false, true}) {
    Calls calls;
    results_of(calls, context_);  // compiles
    for (const auto& [name, call] : calls.all()) {
      SCOPED_TRACE(name + (own_scratch ? ", scratch of the caller" : ""));
      const DeviceMemory scratch(0, std::int64_t{64} << 20);
      Queue queue{stream(), {}};
      if (own_scratch)
        queue.allocate = [&](std::int64_t bytes) -> void* {
          EXPECT_LE(bytes, scratch.size());
          return bytes <= scratch.size() ? scratch.data() : nullptr;
        };
      const Recording recording(stream(), [&] { call(queue, context_); });
      for (unsigned seed : {11u, 12u}) {
        calls.x.set(normal(Dtype::float32, {33, 12}, seed));
        for (const DeviceArray* out : calls.outputs())
          stream().fill(out->pointer(), 0x5a, out->bytes());
        recording.play();
        const std::vector<std::vector<char>> played = calls.results();
        for (const DeviceArray* out : calls.outputs())
          stream().fill(out->pointer(), 0x5a, out->bytes());
        call({stream(), {}}, context_);
        stream().wait();
        EXPECT_TRUE(played == calls.results());
      }
    }
  }
}

/// A parameter of the device has the value of the day; one of the host that of the recording.
TEST_F(Cuda, RecordedParameters) {
  const Array hx = normal(Dtype::float32, {13, 9}, 1), hz = normal(Dtype::float32, {70, 9}, 2);
  Array host = filled(Dtype::float64, {2}, {3, 5});
  DeviceArray b(filled(Dtype::float64, {2}, {3, 5}));
  const DeviceArray x(hx), z(hz), from_device(Array(Dtype::float32, {2, 13, 70})),
      from_host(Array(Dtype::float32, {2, 13, 70}));
  const Tensor zt = z;
  const auto call = [&] {
    pairwise(kLaplace, x, &zt, from_device, on_stream(stream(), {{"b", b.tensor()}}), context_);
    pairwise(kLaplace, x, &zt, from_host, on_stream(stream(), {{"b", host.tensor()}}), context_);
  };
  call();
  stream().wait();
  const Recording recording(stream(), call);
  b.set(filled(Dtype::float64, {2}, {8, 2}));
  host.set({0}, 100);
  host.set({1}, 100);
  recording.play();
  const Array now = from_device.back(), then = from_host.back();
  expect_pairs(item(now, {0}), laplace_values(hx, hz, 8), "device");
  expect_pairs(item(now, {1}), laplace_values(hx, hz, 2), "device");
  expect_pairs(item(then, {0}), laplace_values(hx, hz, 3), "host");
  expect_pairs(item(then, {1}), laplace_values(hx, hz, 5), "host");
}

TEST_F(Cuda, NothingIsCompiledWhileAGraphIsRecorded) {
  const Calls calls;
  for (const auto& [name, call] : calls.all()) {
    Context cold;
    const std::string message = message_of([&] { Recording(stream(), [&] { call({stream(), {}}, cold); }); });
    EXPECT_NE(message.find("mercer.compile"), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
  for (const DeviceArray* out : calls.outputs()) EXPECT_TRUE(out->back().untouched());
}

TEST_F(Cuda, CompiledAheadOfTheRecording) {
  Context cold;
  CompileRequest request;
  request.verbs = {"pairwise", "kernel_product", "kernel_gradient"};
  request.shapes = {{1, 33, 150, 12}};
  request.devices = {{{DeviceKind::cuda, 0}, {}}};
  request.params = {{"b", 9.0}};
  for (std::int64_t columns : {3, 2}) {
    request.columns = columns;
    compile(kLaplace, request, cold);
  }
  const Calls calls;
  for (const auto& [name, call] : calls.all()) {
    if (std::find(request.verbs.begin(), request.verbs.end(), name) == request.verbs.end()) continue;
    EXPECT_EQ(message_of([&] { Recording(stream(), [&] { call({stream(), {}}, cold); }); }), "") << name;
  }
}

// ---- large problems -------------------------------------------------------------------------------------------------

/// Pairs chosen at random, the corners among them.
std::vector<std::pair<std::int64_t, std::int64_t>> sampled_pairs(std::int64_t m, std::int64_t n, int count) {
  std::mt19937_64 random(7);
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs{{0, 0}, {0, n - 1}, {m - 1, 0}, {m - 1, n - 1}};
  for (int i = 0; i < count; ++i)
    pairs.emplace_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(m)),
                       static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)));
  return pairs;
}

/// The other files' problems fill none of the large tiles.
TEST_F(Cuda, LargeTiles) {
  struct Case {
    const char *text, *scale;
  };
  for (const Case& c : {Case{"sum(abs(x-z))", ""}, Case{"sqrt(sum((x-z)^2))", ""}, Case{"max(abs(x-z))", ""},
                        Case{"sum(x*z)", "sqrt(sum(x*x)*sum(z*z))"}, Case{"sum(abs(x-z)^1.3)^(1/1.3)", ""},
                        Case{"exp(-sum((x-z)^2)/(4*K))", "s = sum((x-z)^2)/(4*K); exp(-s)*(1+s)"},
                        Case{"sum(exp(-abs(x-z)))", "sum(exp(-abs(x-z))*(1+abs(x-z)))"},
                        Case{"sum(abs(x-z)) + max(abs(x-z)) + min(x*z)",
                             "sum(abs(x-z)) + max(abs(x-z)) + max(abs(x*z))"},
                        Case{"q = sum(square(x/sqrt(sum(x*x)) - z/sqrt(sum(z*z)))); q/2", "1 + 0*K"}})
    for (Dtype dtype : kWide)
      for (auto [m, n, k] : {std::array{1801, 1700, 37}, {1536, 1664, 3}, {1601, 1793, 300}, {20, 9001, 33},
                             {9001, 20, 33}}) {
        SCOPED_TRACE(::testing::Message() << c.text << " of " << name_of(dtype) << " " << m << "x" << n << "x" << k);
        const Array hx = normal(dtype, {m, k}, 1), hz = normal(dtype, {n, k}, 2);
        const DeviceArray x(hx), z(hz), out(Array(dtype, {m, n}));
        const Tensor zt = z;
        pairwise(c.text, x, &zt, out, on_stream(stream()), context_);
        stream().wait();
        const Array result = out.back();
        Reference value(parse(c.text), hx, hz), size(parse(*c.scale ? c.scale : c.text), hx, hz);
        for (const auto& [i, j] : sampled_pairs(m, n, 300)) {
          const double wanted = value(i, j), bound = unit(dtype) * std::abs(size(i, j));
          ASSERT_TRUE(within(result(i, j), wanted, bound, dtype)) << i << "," << j << ": " << result(i, j) << " for "
                                                                 << wanted << ", bound " << bound;
        }
      }
}

/// Pairs that are kept on their way, for neighbours and gradients, come in parts of rows.
TEST_F(Cuda, RowsInParts) {
  constexpr std::int64_t kM = 9000, kN = 9001, kK = 5, kNearest = 3;  // 324 MB of float32
  const Array hx = normal(Dtype::float32, {kM, kK}, 1), hz = normal(Dtype::float32, {kN, kK}, 2),
              hc = normal(Dtype::float32, {kN}, 3), hr = normal(Dtype::float32, {kM}, 4);
  const DeviceArray x(hx), z(hz), coef(hc), row(hr), gradient(Array(Dtype::float32, {kM, kK})),
      values(Array(Dtype::float32, {kM, kNearest})), indices(Array(Dtype::int64, {kM, kNearest}));
  const Tensor zt = z;
  const Expr f = parse("sum(abs(x-z)) + abs(row) + 0.001*i"), g = parse("exp(-sum(abs(x-z)))*row");
  Arguments arguments = on_stream(stream());
  arguments.row = row.tensor();
  knn(f, x, &zt, kNearest, values, indices, arguments, context_);
  kernel_gradient(g, x, &zt, coef, gradient, arguments, context_);
  stream().wait();
  const Array near = values.back(), where = indices.back(), field = gradient.back();
  Extra extra;
  for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(hr(m));
  Reference value(f, hx, hz, extra), derivative(differentiate(g, points().x), hx, hz, extra);
  for (std::int64_t m : {0, 1, 4000, 7295, 7296, 7297, 8999}) {
    std::vector<double> all;
    for (std::int64_t n = 0; n < kN; ++n) all.push_back(value(m, n));
    for (std::int64_t j = 0; j < kNearest; ++j) {
      ASSERT_TRUE(where(m, j) >= 0 && where(m, j) < kN) << m;
      EXPECT_NEAR(near(m, j), all[static_cast<std::size_t>(where(m, j))], 1e-6 * near(m, j)) << m;
    }
    std::nth_element(all.begin(), all.begin() + kNearest - 1, all.end());
    EXPECT_NEAR(near(m, kNearest - 1), all[kNearest - 1], 1e-6 * near(m, kNearest - 1)) << m;
    for (std::int64_t k = 0; k < kK; ++k) {
      double sum = 0, size = 0;
      for (std::int64_t n = 0; n < kN; ++n) {
        sum += hc(n) * derivative(m, n, k);
        size += std::abs(hc(n) * derivative(m, n, k));
      }
      EXPECT_NEAR(field(m, k), sum, 1e-6 * size) << m << "," << k;
    }
  }
}

/// Long sums over n in float32, all terms of one sign: rows enough that none is split into many ranges.
TEST_F(Cuda, LongSumsOverPoints) {
  constexpr std::int64_t kM = 20000, kN = 40000;
  const Array hx = normal(Dtype::float32, {kM, 2}, 1), hz = normal(Dtype::float32, {kN, 2}, 2),
              hv = uniform(Dtype::float32, {kN}, 3);
  const DeviceArray x(hx), z(hz), v(hv), product(Array(Dtype::float32, {kM})), sum(Array(Dtype::float32, {kM})),
      top(Array(Dtype::float32, {kM}));
  const Tensor zt = z;
  const char* text = "exp(-sum(abs(x-z)))";
  kernel_product(text, x, &zt, v, product, on_stream(stream()), context_);
  kernel_reduce(text, x, &zt, ReduceKind::sum, sum, on_stream(stream()), context_);
  kernel_reduce(text, x, &zt, ReduceKind::logsumexp, top, on_stream(stream()), context_);
  stream().wait();
  const Array products = product.back(), sums = sum.back(), tops = top.back();
  Reference value(parse(text), hx, hz);
  for (std::int64_t m : {0, 1, 777, 12345, 19999}) {
    double wanted = 0, weighted = 0, exponentials = 0;
    for (std::int64_t n = 0; n < kN; ++n) {
      const double f = value(m, n);
      wanted += f;
      weighted += f * hv(n);
      exponentials += std::exp(f);
    }
    EXPECT_NEAR(sums(m), wanted, 1e-6 * (1 + wanted));
    EXPECT_NEAR(products(m), weighted, 2e-6 * weighted);
    EXPECT_NEAR(tops(m), std::log(exponentials), 1e-6 * (1 + std::log(exponentials)));
  }
}

/// Values of one element type at places of device memory.
template <class T>
T value_at(const DeviceStream& stream, const DeviceMemory& memory, std::int64_t element) {
  T value{};
  stream.download(&value, memory.at(element * static_cast<std::int64_t>(sizeof(T))), sizeof(T));
  return value;
}

class PastTwoToThe31 : public Cuda {
 protected:
  /// Whether the device has so many bytes; lacking_ says it in numbers.
  bool has_room(std::int64_t bytes) {
    const std::int64_t free = free_memory(), needed = bytes + (std::int64_t{1} << 30);
    lacking_ = "needs " + std::to_string(needed >> 20) + " MB of device memory, " + std::to_string(free >> 20) +
               " are free";
    return free >= needed;
  }
  std::string lacking_;
};

TEST_F(PastTwoToThe31, Outputs) {
  constexpr std::int64_t kM = 65536, kN = 40000, kK = 3;
  if (!has_room(kM * kN * 2)) GTEST_SKIP() << lacking_;
  const Array hx = uniform(Dtype::uint8, {kM, kK}, 1, 0, 255), hz = uniform(Dtype::uint8, {kN, kK}, 2, 0, 255);
  const DeviceArray x(hx), z(hz);
  const DeviceMemory memory(0, kM * kN * 2);
  const Tensor zt = z;
  for (bool column_major : {false, true}) {
    const Shape strides = column_major ? Shape{1, kM} : Shape{kN, 1};
    Tensor out(memory.data(), Dtype::float16, {kM, kN}, strides);
    out.device = {DeviceKind::cuda, 0};
    stream().fill(memory.at(), 0xff, memory.size());
    pairwise("sum(abs(x-z))", x, &zt, out, on_stream(stream()), context_);
    for (const auto& [m, n] : sampled_pairs(kM, kN, 300)) {
      double wanted = 0;  // float16 holds all integers up to 2048
      for (std::int64_t k = 0; k < kK; ++k) wanted += std::abs(hx(m, k) - hz(n, k));
      const auto bits = value_at<std::uint16_t>(stream(), memory, m * strides[0] + n * strides[1]);
      ASSERT_EQ(float_from_half(bits), wanted) << m << "," << n;
    }
  }
}

TEST_F(PastTwoToThe31, SymmetricOutputs) {
  constexpr std::int64_t kM = 50001;
  if (!has_room(kM * kM * 4)) GTEST_SKIP() << lacking_;
  const Array hx = normal(Dtype::float32, {kM, 2}, 1);
  const DeviceArray x(hx);
  const DeviceMemory memory(0, kM * kM * 4);
  Tensor out(memory.data(), Dtype::float32, {kM, kM});
  out.device = {DeviceKind::cuda, 0};
  stream().fill(memory.at(), 0xff, memory.size());
  pairwise("sum(abs(x-z))", x, nullptr, out, on_stream(stream()), context_);
  Reference value(parse("sum(abs(x-z))"), hx, hx);
  for (const auto& [m, n] : sampled_pairs(kM, kM, 300)) {
    const float a = value_at<float>(stream(), memory, m * kM + n), b = value_at<float>(stream(), memory, n * kM + m);
    ASSERT_EQ(a, b) << m << "," << n;
    ASSERT_NEAR(a, value(m, n), 1e-6 * value(m, n)) << m << "," << n;
  }
}

TEST_F(PastTwoToThe31, Inputs) {
  constexpr std::int64_t kM = 70000, kK = 32768;
  if (!has_room(kM * kK * 5)) GTEST_SKIP() << lacking_;  // and packed as float32
  const DeviceMemory points(0, kM * kK), far(0, kK);
  const DeviceArray out(Array(Dtype::float32, {kM, 1}));
  stream().fill(points.at(), 1, points.size());
  stream().fill(points.at((kM - 1) * kK), 3, kK);
  stream().fill(far.at(), 0, kK);
  Tensor x(points.data(), Dtype::uint8, {kM, kK}), z(far.data(), Dtype::uint8, {1, kK});
  x.device = z.device = {DeviceKind::cuda, 0};
  pairwise("sum(abs(x-z))", x, &z, out, on_stream(stream()), context_);
  stream().wait();
  const Array result = out.back();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{65535}, std::int64_t{65536}, kM - 2})
    EXPECT_EQ(result(m, 0), kK) << m;
  EXPECT_EQ(result(kM - 1, 0), 3 * kK);
}

TEST_F(PastTwoToThe31, BlocksOfRowsOfAField) {
  constexpr std::int64_t kM = 4300000, kN = 100, kK = 20;  // a grid's second axis has 65535 blocks, of up to 64 rows
  if (!has_room(kM * kK * 9)) GTEST_SKIP() << lacking_;
  const DeviceMemory points(0, kM * kK), far(0, kN * kK), memory(0, kM * kK * 4);
  stream().fill(points.at(), 1, points.size());
  stream().fill(points.at((kM - 1) * kK), 0, kK);
  stream().fill(far.at(), 0, far.size());
  stream().fill(memory.at(), 0xff, memory.size());
  Tensor x(points.data(), Dtype::uint8, {kM, kK}), z(far.data(), Dtype::uint8, {kN, kK});
  Tensor out(memory.data(), Dtype::float32, {kM, kK});
  x.device = z.device = out.device = {DeviceKind::cuda, 0};
  const DeviceArray coef(filled(Dtype::float32, {kN}, std::vector<double>(kN, 0.5)));
  kernel_gradient("sum(abs(x-z))", x, &z, coef, out, on_stream(stream()), context_);
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1048559}, std::int64_t{1048560}, std::int64_t{4194239},
                         std::int64_t{4194240}, kM - 2, kM - 1})
    for (std::int64_t k : {std::int64_t{0}, kK - 1})
      EXPECT_EQ(value_at<float>(stream(), memory, m * kK + k), m == kM - 1 ? 0.0f : 0.5f * kN) << m << "," << k;
}

/// Where (s + row) + col and (s + col) + row differ in their last bit, each pair must be computed once.
TEST_F(Cuda, SymmetricHalvesOfFormulasThatRoundDifferently) {
  const Formula f("sum(abs(x-z)) + row + col");
  ASSERT_TRUE(f.symmetric());
  for (Dtype dtype : {Dtype::float32, Dtype::float64})
    for (std::int64_t m : {33, 64, 65, 129, 500, 2049}) {
      const DeviceArray x(normal(dtype, {m, 5}, 1)), values(normal(dtype, {m}, 2)), out(Array(dtype, {m, m}));
      Arguments arguments = on_stream(stream());
      arguments.row = arguments.col = values.tensor();
      pairwise(f, x, nullptr, out, arguments, context_);
      stream().wait();
      const Array result = out.back();
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < i; ++j)
          ASSERT_EQ(result(i, j), result(j, i)) << name_of(dtype) << " of " << m << " at " << i << "," << j;
    }
}

TEST_F(Cuda, ResultsDoNotChangeFromRunToRun) {
  for (Dtype dtype : kWide) {
    const Calls calls(dtype, 700, 3001, 40);
    const std::vector<std::vector<char>> first = results_of(calls, context_);
    for (int round = 0; round < 5; ++round) EXPECT_TRUE(results_of(calls, context_) == first);
  }
}

/// One chain of additions lost it here: 1.16e-6.
TEST_F(Cuda, DistancesOf256FeaturesKeepTheContract) {
  constexpr std::int64_t kM = 128, kN = 1500, kK = 256;
  const Array x = normal(Dtype::float32, {kM, kK}, 1), z = normal(Dtype::float32, {kN, kK}, 2);
  const DeviceArray own_x(x), own_z(z), out(Array(Dtype::float32, {kM, kN}));
  const Tensor zt = own_z.tensor();
  pairwise("sum(abs(x-z))", own_x, &zt, out, on_stream(stream()), context_);
  stream().wait();
  const Array result = out.back();
  double worst = 0;
  each_index({kM, kN}, [&](const Shape& at) {
    double sum = 0;
    for (std::int64_t i = 0; i < kK; ++i) sum += std::abs(x(at[0], i) - z(at[1], i));
    worst = std::max(worst, std::abs(result(at[0], at[1]) - sum) / sum);
  });
  EXPECT_LT(worst, 1e-6);
}

// ---- devices --------------------------------------------------------------------------------------------------------

/// Refused before anything of CUDA is touched, so also where there is none.
TEST(CudaRules, ArraysOfOneCallLieOnOneDevice) {
  const Device cuda{DeviceKind::cuda, 0}, other{DeviceKind::cuda, 1};
  const Array x = normal(Dtype::float32, {4, 3}, 1), z = normal(Dtype::float32, {5, 3}, 2), out(Dtype::float32, {4, 5}),
              w = normal(Dtype::float32, {3}, 3), row = normal(Dtype::float32, {4}, 4),
              v = normal(Dtype::float32, {5, 2}, 5), y(Dtype::float32, {4, 2}), coef = normal(Dtype::float32, {5}, 6),
              g(Dtype::float32, {4, 3}), b = filled(Dtype::float32, {2}, {1, 2}), index(Dtype::int64, {4, 2});
  const auto on = [](const Array& array, Device device) {
    Tensor t = array;
    t.device = device;
    return t;
  };
  const auto refused = [](const std::string& message, const std::string& rule) {
    EXPECT_NE(message.find(rule), std::string::npos) << "received \"" << message << "\" without \"" << rule << "\"";
  };
  const auto pairs = [&](const char* text, Device xd, Device zd, Device outd, const Arguments& arguments = {}) {
    const Tensor zt = on(z, zd);
    return message_of([&] { pairwise(text, on(x, xd), &zt, on(out, outd), arguments); });
  };
  refused(pairs("sum(x*z)", cuda, {}, cuda), "pairwise: z must lie on the device of x, cuda:0. Received one on cpu.");
  refused(pairs("sum(x*z)", {}, cuda, {}), "z must lie on the device of x, cpu. Received one on cuda:0.");
  refused(pairs("sum(x*z)", cuda, other, cuda), "z must lie on the device of x, cuda:0. Received one on cuda:1.");
  refused(pairs("sum(x*z)", cuda, cuda, {}), "out must lie on the device of x, cuda:0. Received one on cpu.");
  refused(pairs("sum(x*z)", {}, {}, cuda), "out must lie on the device of x, cpu. Received one on cuda:0.");
  Arguments arguments;
  arguments.w = on(w, {});
  refused(pairs("sum(w*x*z)", cuda, cuda, cuda, arguments), "w must lie on the device of x, cuda:0.");
  arguments.w = on(w, cuda);
  refused(pairs("sum(w*x*z)", {}, {}, {}, arguments), "w must lie on the device of x, cpu.");
  arguments = {};
  arguments.row = on(row, {});
  refused(pairs("sum(x*z)*row", cuda, cuda, cuda, arguments), "row must lie on the device of x, cuda:0.");
  arguments = {};
  arguments.params["b"] = on(b, cuda);
  refused(pairs("sum(x*z)*b", {}, {}, {}, arguments),
          "the parameter \"b\" must lie on the CPU or on the device of x, cpu. Received one on cuda:0.");
  arguments.params["b"] = on(b, other);
  refused(pairs("sum(x*z)*b", cuda, cuda, cuda, arguments), "on the device of x, cuda:0. Received one on cuda:1.");
  const Tensor zt = on(z, cuda);
  refused(message_of([&] { kernel_product("sum(x*z)", on(x, cuda), &zt, v, on(y, cuda)); }),
          "kernel_product: v must lie on the device of x, cuda:0.");
  refused(message_of([&] { kernel_product("sum(x*z)", on(x, cuda), &zt, on(v, cuda), y); }), "out must lie on");
  refused(message_of([&] { kernel_gradient("sum(x*z)", on(x, cuda), &zt, coef, on(g, cuda)); }),
          "kernel_gradient: coef must lie on the device of x, cuda:0.");
  refused(message_of([&] { knn("sum(x*z)", on(x, cuda), &zt, 2, on(y, cuda), index); }), "must lie on the device of x");
  refused(message_of([&] {
            gradient_field(points().x, on(x, cuda), zt, out, on(coef, cuda), on(g, cuda));
          }),
          "gradient_field: amplitude must lie on the device of x, cuda:0.");
  for (const Array* array : {&out, &y, &g, &index}) EXPECT_TRUE(array->untouched());
}

TEST(CudaRules, ADeviceThatThereIsNot) {
  const Array x = normal(Dtype::float32, {4, 3}, 1), out(Dtype::float32, {4, 4});
  Tensor xt = x, to = out;
  xt.device = to.device = {DeviceKind::cuda, 99};
  const std::string message = message_of([&] { pairwise("sum(x*z)", xt, nullptr, to); });
  const char* wanted = cuda_driver() ? "Received 99" : "a CUDA driver that works in this process is needed";
  EXPECT_NE(message.find(wanted), std::string::npos) << message;
  EXPECT_TRUE(out.untouched());
}

TEST_F(Cuda, EveryDeviceComputes) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "one device";
  const Calls first;
  const std::vector<std::vector<char>> wanted = results_of(first, context_);
  const CudaScope scope(0);  // whatever device is current
  for (int device = 1; device < cuda_device_count(); ++device) {
    if (cuda_device(device).architecture() != cuda_device(0).architecture()) continue;
    const Calls there(Dtype::float32, 33, 150, 12, device);
    const DeviceStream stream(device);
    for (const auto& [name, call] : there.all()) call({stream, {}}, context_);
    stream.wait();
    EXPECT_TRUE(there.results() == wanted) << device;
  }
}

}  // namespace
}  // namespace mercer
