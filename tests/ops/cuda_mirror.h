// The context that tests of operations run on. That of CUDA takes every call to device 0: host arrays go there and
// outputs come back, so that one body of a test serves all targets.
//
//   image on the device = guard | block | guard | block … | guard
//
// A block is the memory from the lowest to the highest element of arrays that overlap; so views that are equal stay
// equal, and bytes between elements are there too. After the call nothing but outputs may have changed, nothing at all
// when it threw. Scratch memory is full of NaN before, and has guards of its own. The stream is not the default one and
// does not wait for it: work that went astray is not waited for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <list>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/devices/cuda_driver.h"
#include "core/error.h"
#include "device/nvrtc.h"
#include "mercer/mercer.h"

namespace mercer::testing_support {

/// Why no test runs on CUDA; empty when they do.
inline const std::string& cuda_missing() {
  static const std::string reason = [] {
    std::string text;
    if (cuda_device_count() == 0) text = describe_cuda();
    else if (testing::nvrtc_for_tests() == nullptr) text = describe_nvrtc();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }();
  return reason;
}

inline std::atomic<int>& cuda_skips() {
  static std::atomic<int> count{0};
  return count;
}
/// False, and counted, when there is no CUDA.
inline bool cuda_serves() {
  if (cuda_missing().empty()) return true;
  ++cuda_skips();
  return false;
}

/// Says at the end of a test program what CUDA did not see. Kernels are full ones from the first call on, which may be
/// a test's only one.
class CudaReport : public ::testing::Environment {
 public:
  void SetUp() override { ::setenv("MERCER_QUICK_COMPILE", "0", 0); }
  void TearDown() override {
    if (cuda_skips() > 0) std::printf("CUDA: skipped, %d times: %s\n", cuda_skips().load(), cuda_missing().c_str());
  }
};
inline ::testing::Environment* const kCudaReport = ::testing::AddGlobalTestEnvironment(new CudaReport);

/// Memory of a device, which only grows.
class DeviceMemory {
 public:
  explicit DeviceMemory(int device = 0, std::int64_t bytes = 0) : device_(device) { reserve(bytes); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { release(); }

  void reserve(std::int64_t bytes) {
    if (bytes <= size_) return;
    release();
    const CudaScope scope(device_);
    check_cuda(cuda_driver()->memory_alloc(&pointer_, static_cast<std::size_t>(bytes)), "test", bytes);
    size_ = bytes;
  }
  CuPointer at(std::int64_t offset = 0) const { return pointer_ + static_cast<CuPointer>(offset); }
  char* data() const { return reinterpret_cast<char*>(pointer_); }
  std::int64_t size() const { return size_; }
  int device() const { return device_; }

 private:
  void release() {
    if (pointer_ == 0) return;
    const CudaScope scope(device_);
    cuda_driver()->memory_free(pointer_);  // waits for what still uses it
    pointer_ = 0;
  }
  int device_;
  CuPointer pointer_ = 0;
  std::int64_t size_ = 0;
};

/// A stream that the default stream does not order.
class DeviceStream {
 public:
  explicit DeviceStream(int device = 0) : device_(device) {
    const CudaScope scope(device_);
    check_cuda(cuda_driver()->stream_create(&stream_, kCuStreamNonBlocking), "test");
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream() {
    const CudaScope scope(device_);
    cuda_driver()->stream_destroy(stream_);
  }
  operator CuStream() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void copy(CuPointer to, CuPointer from, std::int64_t bytes) const {
    const CudaScope scope(device_);
    check_cuda(cuda_driver()->copy_async(to, from, static_cast<std::size_t>(bytes), stream_), "test");
  }
  void upload(CuPointer to, const void* from, std::int64_t bytes) const {
    copy(to, reinterpret_cast<CuPointer>(from), bytes);
  }
  /// And waits for it.
  void download(void* to, CuPointer from, std::int64_t bytes) const {
    copy(reinterpret_cast<CuPointer>(to), from, bytes);
    wait();
  }
  void fill(CuPointer to, unsigned char value, std::int64_t bytes) const {
    const CudaScope scope(device_);
    check_cuda(cuda_driver()->set_bytes_async(to, value, static_cast<std::size_t>(bytes), stream_), "test");
  }
  void wait() const {
    const CudaScope scope(device_);
    check_cuda(cuda_driver()->stream_synchronize(stream_), "test");
  }

 private:
  int device_;
  CuStream stream_ = nullptr;
};

/// The graph of what `body` puts into a stream.
class Recording {
 public:
  template <class Body>
  Recording(const DeviceStream& stream, const Body& body) : stream_(stream) {
    const CudaScope scope(0);
    check_cuda(cuda_driver()->stream_begin_capture(stream, kCuCaptureThreadLocal), "test");
    try {
      body();
    } catch (...) {
      finish();
      cuda_driver()->graph_destroy(graph_);
      throw;
    }
    finish();
    check_cuda(cuda_driver()->graph_instantiate(&executable_, graph_, 0), "test");
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    const CudaScope scope(0);
    if (executable_) cuda_driver()->graph_executable_destroy(executable_);
    if (graph_) cuda_driver()->graph_destroy(graph_);
  }
  void play() const {
    const CudaScope scope(0);
    check_cuda(cuda_driver()->graph_launch(executable_, stream_), "test");
    stream_.wait();
  }

 private:
  void finish() { check_cuda(cuda_driver()->stream_end_capture(stream_, &graph_), "test"); }
  const DeviceStream& stream_;
  CuGraph graph_ = nullptr;
  CuGraphExec executable_ = nullptr;
};

/// Scratch memory as hostile as it may be: NaN everywhere, a guard at both ends, for one question a call.
class PoisonedScratch {
 public:
  explicit PoisonedScratch(int device = 0) : memory_(device) {}
  /// For Queue::allocate.
  void* take(std::int64_t bytes, const DeviceStream& stream) {
    EXPECT_EQ(++asked_, 1) << "scratch memory is asked for once a call";
    EXPECT_GT(bytes, 0);
    bytes_ = bytes;
    memory_.reserve(bytes + 2 * kGuard);
    stream.fill(memory_.at(), 0xff, bytes + 2 * kGuard);
    return memory_.data() + kGuard;
  }
  /// After the call; the stream is waited for.
  void check(const DeviceStream& stream) {
    if (asked_ == 0) return;
    std::vector<unsigned char> ends(2 * kGuard);
    stream.download(ends.data(), memory_.at(), kGuard);
    stream.download(ends.data() + kGuard, memory_.at(kGuard + bytes_), kGuard);
    const bool clean = std::all_of(ends.begin(), ends.end(), [](unsigned char byte) { return byte == 0xff; });
    EXPECT_TRUE(clean) << "written outside the " << bytes_ << " bytes of scratch memory";
    asked_ = 0;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t kGuard = 4096;
  DeviceMemory memory_;
  int asked_ = 0;
  std::int64_t bytes_ = 0;
};

/// How a call on CUDA gets its parameters: numbers stay numbers and arrays go to the device; arrays stay on the host;
/// numbers go to the device too, as arrays without axes.
enum class ParamPlace : std::uint8_t { device, host, device_with_numbers };

/// A context that runs calls of the tests on a target of the CPU, or on CUDA device 0.
class TestContext : public Context {
 public:
  explicit TestContext(Target target) : name_(name_of(target)) { set_target(target); }
  struct Cuda {};
  explicit TestContext(Cuda) : name_("cuda"), on_cuda_(true) {}

  const char* name() const { return name_; }
  bool on_cuda() const { return on_cuda_; }
  /// Whether values of this type come from the special-function unit of a GPU.
  bool has_unit(Dtype type) const { return on_cuda_ && type != Dtype::float64; }
  ParamPlace params = ParamPlace::device;

 private:
  const char* name_;
  bool on_cuda_ = false;
};

/// A call taken to the device.
class CudaCall {
 public:
  CudaCall(std::vector<const Tensor*> inputs, std::vector<const Tensor*> outputs, const Arguments& arguments,
           const TestContext& context)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)), arguments_(arguments), place_(context.params) {
    inputs_.insert(inputs_.end(), outputs_.begin(), outputs_.end());
    add_arguments(arguments);
    lay_out();
    move_arguments();
  }

  /// The view of a tensor on the host, moved to the device.
  Tensor operator()(const Tensor& host) const {
    Tensor moved = host;
    moved.device = {DeviceKind::cuda, 0};
    if (host.data == nullptr) return moved;
    const Range range = range_of(host);
    for (const Block& block : blocks_)
      if (block.low <= range.low && range.high <= block.high) {
        moved.data = lane().image.data() + block.place + (static_cast<const char*>(host.data) - block.low);
        return moved;
      }
    moved.data = lane().image.data();  // no elements, but memory
    return moved;
  }
  const Arguments& arguments() const { return arguments_; }

  template <class Verb>
  void run(const Verb& verb) {
    lane().stream.upload(lane().image.at(), image_.data(), size());
    try {
      verb();
    } catch (...) {
      finish(false);
      throw;
    }
    finish(true);
  }

 private:
  static constexpr std::int64_t kGuard = 512;
  struct Range {
    const char *low, *high;
  };
  struct Block : Range {
    std::int64_t place;
  };
  /// What a thread of the tests keeps from call to call.
  struct Lane {
    DeviceStream stream;
    DeviceMemory image;
    PoisonedScratch scratch;
  };
  static Lane& lane() {
    thread_local Lane kept;
    return kept;
  }

  static Range range_of(const Tensor& t) {
    std::int64_t low = 0, high = 1;
    for (std::size_t axis = 0; axis < t.shape.size(); ++axis) {
      if (t.shape[axis] == 0) return {static_cast<const char*>(t.data), static_cast<const char*>(t.data)};
      const std::int64_t reach = (t.shape[axis] - 1) * t.strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    return {static_cast<const char*>(t.data) + low * size, static_cast<const char*>(t.data) + high * size};
  }

  void add_arguments(const Arguments& arguments) {
    for (const auto* optional : {&arguments.w, &arguments.row, &arguments.col})
      if (*optional) inputs_.push_back(&**optional);
    for (const auto& [name, value] : arguments.params) {
      if (const Tensor* array = std::get_if<Tensor>(&value); array && place_ != ParamPlace::host)
        inputs_.push_back(array);
      if (const double* number = std::get_if<double>(&value); number && place_ == ParamPlace::device_with_numbers)
        inputs_.push_back(&numbers_.emplace_back(view(number, {})));
    }
  }

  void lay_out() {
    std::vector<Range> ranges;
    for (const Tensor* t : inputs_)
      if (t && t->data && range_of(*t).low < range_of(*t).high) ranges.push_back(range_of(*t));
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.low < b.low; });
    std::int64_t place = kGuard;
    for (std::size_t i = 0; i < ranges.size();) {
      Block block{ranges[i], place};
      for (++i; i < ranges.size() && ranges[i].low < block.high; ++i) block.high = std::max(block.high, ranges[i].high);
      place += (block.high - block.low + 2 * kGuard - 1) / kGuard * kGuard;
      blocks_.push_back(block);
    }
    image_.assign(static_cast<std::size_t>(place), static_cast<char>(0xa5));
    for (const Block& block : blocks_) std::copy(block.low, block.high, image_.begin() + block.place);
    lane().image.reserve(size());
  }

  void move_arguments() {
    for (auto* optional : {&arguments_.w, &arguments_.row, &arguments_.col})
      if (*optional) *optional = (*this)(**optional);
    auto number = numbers_.begin();
    for (auto& [name, value] : arguments_.params) {
      if (const Tensor* array = std::get_if<Tensor>(&value); array && place_ != ParamPlace::host)
        value = (*this)(*array);
      else if (std::holds_alternative<double>(value) && place_ == ParamPlace::device_with_numbers)
        value = (*this)(*number++);
    }
    arguments_.queue.stream = lane().stream;
    arguments_.queue.allocate = [](std::int64_t bytes) { return lane().scratch.take(bytes, lane().stream); };
  }

  void finish(bool succeeded) {
    std::vector<char> after(image_.size());
    lane().stream.download(after.data(), lane().image.at(), size());
    lane().scratch.check(lane().stream);
    if (succeeded)
      for (const Tensor* out : outputs_) bring_back(*out, after);
    EXPECT_TRUE(after == image_) << (succeeded ? "written outside of the outputs" : "written by a call that failed");
  }

  void bring_back(const Tensor& out, const std::vector<char>& after) {
    const Range range = range_of(out);
    if (range.low == range.high) return;
    const std::int64_t place = static_cast<const char*>((*this)(out).data) - lane().image.data();
    const auto first = after.begin() + place - (static_cast<const char*>(out.data) - range.low);
    std::copy(first, first + (range.high - range.low), const_cast<char*>(range.low));
    std::copy(first, first + (range.high - range.low), image_.begin() + (first - after.begin()));
  }

  std::int64_t size() const { return static_cast<std::int64_t>(image_.size()); }

  std::vector<const Tensor*> inputs_, outputs_;
  std::list<Tensor> numbers_;
  Arguments arguments_;
  ParamPlace place_;
  std::vector<Block> blocks_;
  std::vector<char> image_;
};

// ---- the verbs ------------------------------------------------------------------------------------------------------
/// body(view on the device, arguments, z on the device or null).
template <class Body>
void take_to_cuda(const Tensor& x, const Tensor* z, std::vector<const Tensor*> more, std::vector<const Tensor*> outputs,
                  const Arguments& arguments, const TestContext& context, const Body& body) {
  more.insert(more.end(), {&x, z});
  CudaCall call(std::move(more), std::move(outputs), arguments, context);
  const Tensor moved_z = z ? call(*z) : Tensor();
  call.run([&] { body(call, z ? &moved_z : nullptr); });
}

inline void pairwise(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& out, const Arguments& arguments,
                     TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::pairwise(f, x, z, out, arguments, plain);
  take_to_cuda(x, z, {}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::pairwise(f, at(x), zd, at(out), at.arguments(), plain);
  });
}

inline void kernel_product(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, const Tensor& out,
                           const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::kernel_product(f, x, z, v, out, arguments, plain);
  take_to_cuda(x, z, {&v}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::kernel_product(f, at(x), zd, at(v), at(out), at.arguments(), plain);
  });
}

inline void kernel_reduce(const Formula& f, const Tensor& x, const Tensor* z, ReduceKind kind, const Tensor& out,
                          const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::kernel_reduce(f, x, z, kind, out, arguments, plain);
  take_to_cuda(x, z, {}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::kernel_reduce(f, at(x), zd, kind, at(out), at.arguments(), plain);
  });
}

inline void knn(const Formula& f, const Tensor& x, const Tensor* z, std::int64_t k, const Tensor& values,
                const Tensor& indices, const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::knn(f, x, z, k, values, indices, arguments, plain);
  take_to_cuda(x, z, {}, {&values, &indices}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::knn(f, at(x), zd, k, at(values), at(indices), at.arguments(), plain);
  });
}

inline void kernel_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                            const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::kernel_gradient(f, x, z, coef, out, arguments, plain);
  take_to_cuda(x, z, {&coef}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::kernel_gradient(f, at(x), zd, at(coef), at(out), at.arguments(), plain);
  });
}

inline void product_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                             const Tensor& out, const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::product_gradient(f, x, z, weights, v, out, arguments, plain);
  take_to_cuda(x, z, {&weights, &v}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::product_gradient(f, at(x), zd, at(weights), at(v), at(out), at.arguments(), plain);
  });
}

/// Results on the device in place of those of the caller.
class ExtraOutputsThere {
 public:
  ExtraOutputsThere(const ExtraOutputs& extra, const CudaCall& at) : there_(extra) {
    for (const auto result : kResults)
      if (extra.*result != nullptr) there_.*result = &tensors_.emplace_back(at(*(extra.*result)));
  }
  static void add_results(const ExtraOutputs& extra, std::vector<const Tensor*>& to) {
    for (const auto result : kResults)
      if (extra.*result != nullptr) to.push_back(extra.*result);
  }
  operator const ExtraOutputs&() const { return there_; }

 private:
  static constexpr const Tensor* ExtraOutputs::* kResults[] = {&ExtraOutputs::sums, &ExtraOutputs::product,
                                                               &ExtraOutputs::by_weights};
  ExtraOutputs there_;
  std::list<Tensor> tensors_;
};

inline bool product_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                             const Tensor& out, const ExtraOutputs& extra, const Arguments& arguments,
                             TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::product_backward(f, x, z, weights, v, out, extra, arguments, plain);
  std::vector<const Tensor*> outputs{&out};
  ExtraOutputsThere::add_results(extra, outputs);
  bool is_one_pass = false;
  take_to_cuda(x, z, {&weights, &v}, outputs, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    const ExtraOutputsThere there(extra, at);
    is_one_pass = mercer::product_backward(f, at(x), zd, at(weights), at(v), at(out), there, at.arguments(), plain);
  });
  return is_one_pass;
}

inline bool pairwise_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights,
                              const Tensor& out, const ExtraOutputs& extra, const Arguments& arguments,
                              TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::pairwise_backward(f, x, z, weights, out, extra, arguments, plain);
  std::vector<const Tensor*> outputs{&out};
  ExtraOutputsThere::add_results(extra, outputs);
  bool is_one_pass = false;
  take_to_cuda(x, z, {&weights}, outputs, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    const ExtraOutputsThere there(extra, at);
    is_one_pass = mercer::pairwise_backward(f, at(x), zd, at(weights), at(out), there, at.arguments(), plain);
  });
  return is_one_pass;
}

inline void kernel_agop(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                        const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::kernel_agop(f, x, z, coef, out, arguments, plain);
  take_to_cuda(x, z, {&coef}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::kernel_agop(f, at(x), zd, at(coef), at(out), at.arguments(), plain);
  });
}

inline void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor& amplitude,
                           const Tensor& coef, const Tensor& out, const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::gradient_field(field, x, z, amplitude, coef, out, arguments, plain);
  take_to_cuda(x, &z, {&amplitude, &coef}, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    mercer::gradient_field(field, at(x), *zd, at(amplitude), at(coef), at(out), at.arguments(), plain);
  });
}

inline void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude,
                           const Tensor& coef, const Tensor& out, const Arguments& arguments, TestContext& context) {
  gradient_field(Formula::field(phi), x, z, amplitude, coef, out, arguments, context);
}

}  // namespace mercer::testing_support
