// Calls that differ in nothing but addresses from one before: they go past the checks, by that one's program.
#include "core/devices/cuda_driver.h"
#include "core/testing.h"
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;
using kron::Options;

std::size_t kept_in(TestContext& context) { return static_cast<Context&>(context).state().cuda_krons.size(); }

/// Layouts, numbers and sizes that a key which forgets something would take for one another.
std::vector<Call> calls() {
  const Call plain = call_of({{3, 4}, {2, 2}}, 5);
  std::vector<Call> all = {plain, call_of({{2, 2}, {3, 4}}, 5), call_of({{3, 2}, {2, 4}}, 5), call_of({{6, 8}}, 5),
                           call_of({{3, 4}, {2, 2}}, 5, Dtype::float64), call_of({{3, 4}, {2, 2}}, 7)};
  const auto add = [&](const auto& change) { change(all.emplace_back(plain)); };
  add([](Call& c) { c.items = 2; });
  add([](Call& c) { c.turned = true; });
  add([](Call& c) { c.gaps = true; });
  add([](Call& c) { c.by_columns = true; });
  add([](Call& c) { c.alpha = -2; });
  add([](Call& c) { c.beta = 0.5; });
  add([](Call& c) { c.beta = 1; });
  return all;
}

TEST(KronAgain, LayoutsAreToldApart) {
  on_cuda([](TestContext& context) {
    for (const Call& call : calls()) expect_right(call, context);
    const std::size_t kept = kept_in(context);
    EXPECT_GE(kept, calls().size());
    for (const Call& call : calls()) {
      Arrays arrays(call);
      arrays.x.set({0, 0, 0}, 3);  // nothing of the arrays but their layout stays
      arrays.multiply(call, context, arrays.out);
      expect_right(call, arrays, arrays.out);
    }
    EXPECT_EQ(kept_in(context), kept);
  });
}

/// Arrays in one piece of memory, at multiples of 4 bytes.
class Piece {
 public:
  explicit Piece(std::int64_t values) : memory_(0, values * 4), values_(values) {
    stream_.fill(memory_.at(), 0, values * 4);
  }
  Tensor at(std::int64_t place, Shape shape) const {
    Tensor tensor(memory_.data() + place * 4, Dtype::float32, std::move(shape));
    tensor.device = {DeviceKind::cuda, 0};
    return tensor;
  }
  void put(std::int64_t place, const Array& array) const {
    stream_.upload(memory_.at(place * 4), array.bytes().data(), static_cast<std::int64_t>(array.bytes().size()));
  }
  std::vector<float> get() const {
    std::vector<float> values(static_cast<std::size_t>(values_));
    stream_.download(values.data(), memory_.at(), values_ * 4);
    return values;
  }
  Options options() const {
    Options options;
    options.queue.stream = static_cast<CuStream>(stream_);
    return options;
  }

 private:
  DeviceStream stream_;
  DeviceMemory memory_;
  std::int64_t values_;
};

TEST(KronAgain, AddressesAreLookedAt) {
  on_cuda([](TestContext& test) {
    Context& context = test;
    constexpr std::int64_t kSize = 4 * 16;  // of x and of out
    const Piece piece(1024);
    const Array x = normal(Dtype::float32, {4, 16}, 1), f = normal(Dtype::float32, {4, 4}, 2);
    piece.put(0, x), piece.put(1, x), piece.put(900, f), piece.put(917, f);
    const Options options = piece.options();
    const auto multiply = [&](std::int64_t from, std::int64_t to, std::int64_t factor) {
      const std::vector<Tensor> factors(2, piece.at(factor, {4, 4}));
      kron::matmul(piece.at(from, {4, 16}), factors, piece.at(to, {4, 16}), options, context);
      const std::vector<float> all = piece.get();
      return std::vector<float>(all.begin() + to, all.begin() + to + kSize);
    };
    piece.put(0, x);
    const std::vector<float> wanted = multiply(0, 128, 900);
    EXPECT_EQ(multiply(0, 256, 900), wanted);
    EXPECT_EQ(multiply(0, 323, 917), wanted);  // out at no multiple of 16 bytes
    EXPECT_EQ(multiply(0, 451, 917), wanted);
    piece.put(515, x);
    EXPECT_EQ(multiply(515, 640, 900), wanted);
    EXPECT_EQ(multiply(515, 704, 900), wanted);
    // A layout that is known is refused over an input, however little of it.
    const std::vector<float> before = piece.get();
    for (const auto& [from, to, factor] : {std::array{0, 32, 900}, {0, 60, 900}, {0, 840, 900}, {256, 256 + 12, 900}}) {
      const Error error = error_of([&] { multiply(from, to, factor); });
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << to;
      EXPECT_NE(std::string(error.what()).find("out must not overlap"), std::string::npos) << error.what();
    }
    EXPECT_EQ(piece.get(), before);
    // A call in place is another one, and known as well.
    piece.put(0, x);
    EXPECT_EQ(multiply(0, 0, 900), wanted);
    piece.put(64, x);
    EXPECT_EQ(multiply(64, 64, 900), wanted);
    EXPECT_EQ(multiply(128, 640, 900), multiply(128, 704, 900));
  });
}

TEST(KronAgain, OtherArgumentsAreCheckedAgain) {
  on_cuda([](TestContext& test) {
    Context& context = test;
    const Piece piece(1024);
    Options options = piece.options();
    const std::vector<Tensor> factors(2, piece.at(900, {4, 4}));
    const Tensor x = piece.at(0, {4, 16}), out = piece.at(128, {4, 16});
    kron::matmul(x, factors, out, options, context);
    const auto fails = [&](const Tensor& points, const std::vector<Tensor>& sides, const Tensor& to) {
      return error_of([&] { kron::matmul(points, sides, to, options, context); }).kind();
    };
    Tensor other = out;
    other.dtype = Dtype::int32;
    EXPECT_EQ(fails(x, factors, other), ErrorKind::invalid_argument);
    other = out;
    other.strides = {16};
    EXPECT_EQ(fails(x, factors, other), ErrorKind::invalid_argument);
    other = factors[0];
    other.device = {};
    EXPECT_EQ(fails(x, {factors[0], other}, out), ErrorKind::invalid_argument);
    other = factors[0];
    other.data = nullptr;
    EXPECT_EQ(fails(x, {factors[0], other}, out), ErrorKind::invalid_argument);
    for (const bool flag : {true, false}) {
      options.transpose_factors = {flag};
      EXPECT_EQ(fails(x, factors, out), ErrorKind::invalid_argument);
    }
    options.transpose_factors = {};
    options.beta = 1;
    EXPECT_EQ(fails(x, factors, out), ErrorKind::invalid_argument);  // no y
    options.beta = 0;
    options.transpose_x = true;
    EXPECT_EQ(fails(x, factors, out), ErrorKind::invalid_argument);
  });
}

}  // namespace
}  // namespace mercer
