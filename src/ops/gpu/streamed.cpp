#include "ops/gpu/streamed.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "backend/rehearsal.h"
#include "core/devices/device_memory.h"
#include "core/error.h"
#include "core/integers.h"
#include "ops/call/call.h"
#include "ops/context.h"
#include "ops/gpu/stream_plan.h"
#include "ops/gpu/stream_side.h"
#include "ops/gpu/stream_totals.h"

namespace mercer::ops {
namespace {

using Verb = Streamed::Verb;

/// What a step is given in place of the arrays of the call.
struct StepArrays {
  Tensor x, z, out, indices;
  std::optional<Tensor> factor;
  std::int64_t k = 1;
};

void run_verb(const Formula& f, const Streamed& call, const StepArrays& a, const Arguments& arguments,
              Context& context) {
  switch (call.verb) {
    case Verb::pairwise: return pairwise(f, a.x, &a.z, a.out, arguments, context);
    case Verb::product: return kernel_product(f, a.x, &a.z, *a.factor, a.out, arguments, context);
    case Verb::reduce: return kernel_reduce(f, a.x, &a.z, call.reduce, a.out, arguments, context);
    case Verb::nearest: return knn(f, a.x, &a.z, a.k, a.out, a.indices, arguments, context);
    case Verb::gradient: return kernel_gradient(f, a.x, &a.z, *a.factor, a.out, arguments, context);
  }
}

bool is_argument(const Streamed& call) {
  return call.verb == Verb::reduce && (call.reduce == ReduceKind::argmax || call.reduce == ReduceKind::argmin);
}

/// Everything that the verb checks of its arguments, on the host.
void check(const Formula& f, const Tensor& x, const Tensor& z, const Streamed& call, const Arguments& arguments,
           Context& context) {
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace};
  Arguments own = arguments;
  own.queue = {};
  own.queue.rehearsal = &rehearsal;
  StepArrays arrays{x, z, call.out, call.indices, {}, call.k};
  if (call.factor != nullptr) arrays.factor = *call.factor;
  for (Tensor* out : {&arrays.out, &arrays.indices}) out->device = x.device;  // its address is its own in either case
  run_verb(f, call, arrays, own, context);
}

void check_axes(const char* op, const Tensor& x, const Tensor& z, const Streamed& call, const Arguments& arguments) {
  const auto has = [&](const char* name, const Tensor& t, int most) {
    if (t.ndim() > most)
      fail(ErrorKind::unsupported, "{}: with device=, {} must have no batch axes: at most {}. Received {}.", op, name,
           most, t.to_text());
  };
  has("x", x, 2);
  has("z", z, 2);
  if (arguments.row) has("row", *arguments.row, 1);
  if (arguments.col) has("col", *arguments.col, 1);
  if (call.factor != nullptr) has(call.verb == Verb::product ? "v" : "coef", *call.factor, 2);
  for (const auto& [name, value] : arguments.params)
    if (const auto* t = std::get_if<Tensor>(&value)) has(name.c_str(), *t, 0);
}

const plan::StreamCosts& costs_of(int device, Context& context) {
  return context.state().costs_on({DeviceKind::cuda, device}, {}).stream;
}

class StreamRun {
 public:
  StreamRun(const char* op, int device, const Formula& f, const Tensor& x, const Tensor& z, const Streamed& call,
            const Arguments& arguments, Context& context)
      : op_(op), device_{DeviceKind::cuda, device}, f_(f), call_(call), arguments_(arguments), context_(context),
        scope_(device), work_(op), staging_(op, costs_of(device, context).piece, context.state().pool),
        totals_(call, compute_type(x.dtype), x.shape[1]) {
    queue_.stream = work_.get();
    place_ = cuda::place_of(op, device_, queue_, compute_type(x.dtype));
    x_.add(x);
    z_.add(z);
    if (arguments.row) x_.add(*arguments.row);
    if (arguments.col) z_.add(*arguments.col);
    if (call.factor != nullptr) z_.add(*call.factor, call.verb == Verb::gradient && call.factor->ndim() > 1 ? 1 : 0);
    if (arguments.w) w_.add(*arguments.w);
    sizes_.m = x.shape[0];
    sizes_.n = z.shape[0];
    sizes_.x_bytes = x_.row_bytes();
    sizes_.z_bytes = z_.row_bytes();
    if (writes_pairs()) sizes_.pair_bytes = static_cast<std::int64_t>(size_of(call.out.dtype));
    else sizes_.result_bytes = totals_.row_bytes();
    sizes_.work = x.shape[1] + sizes_.result_bytes / 16 + 1;
  }
  ~StreamRun() {
    // What is under way reads this memory, and what was freed goes back to the device once the host has waited for it.
    // Nothing can be done here about a device that failed.
    cuda_driver()->stream_synchronize(work_.get());
    cuda_driver()->stream_synchronize(staging_.stream());
    memory_.reset();
    cuda_driver()->stream_synchronize(work_.get());
  }
  StreamRun(const StreamRun&) = delete;
  StreamRun& operator=(const StreamRun&) = delete;

  /// Takes the device's memory for blocks of at most `bytes`; 0: of what is free.
  void prepare(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  /// Rows from `done` on; `done` is what the outputs have, at any time.
  void run(std::int64_t& done);

 private:
  /// A result that is on the device and not yet on the host.
  struct Pending {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0;
    int buffer = 0;
    bool ends_rows = false;
  };
  struct Step {
    explicit Step(const char* op) : start(op, kCuEventDefault), end(op, kCuEventDefault) {}
    cuda::OwnEvent start, end;
    double pairs = 0;
    bool is_open = false, is_measured = false;
  };

  bool writes_pairs() const { return call_.verb == Verb::pairwise; }
  bool on_device(const Tensor& out) const { return out.device.kind == DeviceKind::cuda; }
  bool has_downloads() const {
    return !on_device(call_.out) || (call_.verb == Verb::nearest && !on_device(call_.indices));
  }
  void lay_out(cuda::Workspace& workspace);
  std::int64_t scratch_bytes();
  std::int64_t fitting_bytes(std::int64_t free);
  StepArrays arrays(const cuda::Workspace& workspace, std::int64_t rows, std::int64_t at, std::int64_t count,
                    Arguments& arguments) const;
  std::int64_t rows_of(std::int64_t left) const;
  std::int64_t points_of(std::int64_t left, std::int64_t rows) const;
  void bring(std::int64_t at, std::int64_t count);
  void compute(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count);
  void step(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count, std::int64_t& done);
  void settle(Step& step);
  void finish(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, bool ends_rows);
  void download(std::int64_t& done);
  Tensor tile(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count) const;

  const char* op_;
  Device device_;
  const Formula& f_;
  const Streamed& call_;
  const Arguments& arguments_;
  Context& context_;
  CudaScope scope_;
  cuda::OwnStream work_;
  Queue queue_;
  cuda::PairJob place_;
  cuda::Staging staging_;
  std::optional<cuda::Workspace> memory_{std::in_place};
  cuda::Workspace& workspace_ = *memory_;
  StreamSide x_, z_, w_;
  StreamTotals totals_;
  StreamSizes sizes_;
  StreamPlan plan_;
  std::int64_t bytes_ = 0;
  std::int64_t tiles_[2] = {};
  cuda::OwnEvent arrived_{op_}, ready_first_{op_}, ready_second_{op_};
  Step first_step_{op_}, second_step_{op_};
  double pairs_ = 0;       // of a step, for now
  double done_pairs_ = 0;
  std::int64_t steps_ = 0, loaded_ = 0;
  int x_buffer_ = 0, z_buffer_ = 0, result_buffer_ = 0;
  std::optional<Pending> pending_;
};

void StreamRun::lay_out(cuda::Workspace& workspace) {
  x_.lay_out(workspace, plan_.x_rows, 2);
  z_.lay_out(workspace, plan_.z_rows, plan_.z_buffers());
  w_.lay_out(workspace, arguments_.w ? arguments_.w->shape[0] : 1, 1);
  if (!writes_pairs()) return totals_.lay_out(workspace, plan_.x_rows);
  for (std::int64_t& tile : tiles_) tile = workspace.add(on_device(call_.out) ? 0 : plan_.pairs * sizes_.pair_bytes);
}

/// What the verb itself takes for the largest step.
std::int64_t StreamRun::scratch_bytes() {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;
  cuda::Workspace nowhere;
  lay_out(nowhere);
  nowhere.use(reinterpret_cast<char*>(kMost), kMost, place_);
  const std::int64_t rows = std::min(plan_.x_rows, sizes_.m), count = std::min(plan_.z_rows, sizes_.n);
  const std::int64_t points = plan_.pairs > 0 ? std::min(count, plan_.pairs / rows) : count;
  Arguments own;
  StepArrays given = arrays(nowhere, rows, 0, points, own);
  if (writes_pairs()) {
    given.out = Tensor(nowhere.at(tiles_[0]), call_.out.dtype, {rows, points});
    given.out.device = device_;
  }
  return nowhere.bytes() + workspace_size(own, [&](const Arguments& a) { run_verb(f_, call_, given, a, context_); });
}

/// As many bytes of blocks as leave room for what the verb takes.
std::int64_t StreamRun::fitting_bytes(std::int64_t free) {
  std::int64_t bytes = free / 10 * 7;
  for (constexpr std::int64_t kLeast = 1 << 20; bytes > kLeast; bytes = bytes / 10 * 7) {
    plan_ = plan_stream(sizes_, bytes);
    if (scratch_bytes() <= free / 10 * 9) break;
  }
  return bytes;
}

void StreamRun::prepare(std::int64_t bytes) {
  std::size_t free = 0, total = 0;
  cuda::trim_pool(device_.index, op_);
  if (bytes == 0) {
    check_cuda(cuda_driver()->memory_info(&free, &total), op_);
    bytes = fitting_bytes(static_cast<std::int64_t>(free));
  }
  bytes_ = bytes;
  plan_ = plan_stream(sizes_, bytes);
  totals_.load(place_);
  lay_out(workspace_);
  workspace_.take(place_);
  // Copies run in another stream than the one that the memory comes from.
  check_cuda(cuda_driver()->stream_synchronize(work_.get()), op_);
  if (arguments_.w) w_.upload(staging_, workspace_, 0, 0, 0, arguments_.w->shape[0]);
  pairs_ = costs_of(device_.index, context_).terms / static_cast<double>(sizes_.work);
}

/// Arrays of `rows` points of x and `count` of z, which starts at `at`; the outputs are those of part results.
StepArrays StreamRun::arrays(const cuda::Workspace& workspace, std::int64_t rows, std::int64_t at, std::int64_t count,
                             Arguments& arguments) const {
  const std::int64_t place = plan_.z_stays ? at : 0;
  const auto z_view = [&](std::size_t index) {
    return z_.view(workspace, device_, index, z_buffer_, place, count);
  };
  StepArrays step;
  step.x = x_.view(workspace, device_, 0, x_buffer_, 0, rows);
  step.z = z_view(0);
  arguments.params = arguments_.params;
  arguments.verb = arguments_.verb;
  arguments.queue = queue_;
  if (arguments_.row) arguments.row = x_.view(workspace, device_, 1, x_buffer_, 0, rows);
  if (arguments_.col) arguments.col = z_view(1);
  if (arguments_.w) arguments.w = w_.view(workspace, device_, 0, 0, 0, arguments_.w->shape[0]);
  if (call_.factor != nullptr) step.factor = z_view(arguments_.col ? 2 : 1);
  if (writes_pairs()) return step;
  const std::int64_t found = step.k = std::min(call_.k, count);
  if (is_argument(call_) || call_.verb == Verb::nearest)
    step.indices = totals_.part_indices(workspace, device_, rows, found);
  step.out = is_argument(call_) ? step.indices : totals_.part(workspace, device_, rows, found);
  return step;
}

/// Rows of the next block of x.
std::int64_t StreamRun::rows_of(std::int64_t left) const {
  const std::int64_t blocks = ceil_div(left, plan_.x_rows), rows = ceil_div(left, blocks);
  return std::min({round_up(rows, kStreamAlignment), plan_.x_rows, left});
}

/// Points of z of the next step.
std::int64_t StreamRun::points_of(std::int64_t left, std::int64_t rows) const {
  std::int64_t most = std::min(plan_.z_rows, left);
  if (plan_.pairs > 0) most = std::min(most, rounded_block(plan_.pairs / rows));
  const double by_work = std::min(pairs_ / static_cast<double>(rows), static_cast<double>(most));
  const std::int64_t wanted = std::max(static_cast<std::int64_t>(by_work), costs_of(device_.index, context_).points);
  return wanted >= most ? most : rounded_block(wanted);
}

/// Has these points of z on the device, once what is in the copies' stream is done.
void StreamRun::bring(std::int64_t at, std::int64_t count) {
  if (plan_.z_stays) {
    if (at + count <= loaded_) return;
    z_.upload(staging_, workspace_, 0, loaded_, loaded_, at + count - loaded_);
    loaded_ = at + count;
    return;
  }
  z_buffer_ = 1 - z_buffer_;
  z_.upload(staging_, workspace_, z_buffer_, 0, at, count);
}

Tensor StreamRun::tile(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count) const {
  if (!on_device(call_.out)) {
    Tensor tile(workspace_.at(tiles_[result_buffer_]), call_.out.dtype, {rows, count});
    tile.device = device_;
    return tile;
  }
  Tensor tile = call_.out;
  tile.data = element(tile, row * tile.strides[0] + at * tile.strides[1]);
  tile.shape = {rows, count};
  return tile;
}

void StreamRun::compute(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count) {
  Arguments own;
  StepArrays given = arrays(workspace_, rows, at, count, own);
  own.i_offset = arguments_.i_offset + row;
  own.j_offset = arguments_.j_offset + at;
  if (writes_pairs()) {
    given.out = tile(row, rows, at, count);
    return run_verb(f_, call_, given, own, context_);
  }
  run_verb(f_, call_, given, own, context_);
  if (is_argument(call_) && count < sizes_.n) {  // blocks are compared by their values
    Streamed values = call_;
    values.reduce = call_.reduce == ReduceKind::argmax ? ReduceKind::max : ReduceKind::min;
    given.out = totals_.part(workspace_, device_, rows, 1);
    run_verb(f_, values, given, own, context_);
  }
  totals_.merge(workspace_, place_, rows, std::min(call_.k, count), at, at == 0);
}

/// Waits for a step and learns from it how long steps are.
void StreamRun::settle(Step& step) {
  constexpr float kShort = 80, kLong = 500;  // milliseconds
  constexpr double kGrowth = 4;
  if (!step.is_open) return;
  const CudaDriver& driver = *cuda_driver();
  check_cuda(driver.event_synchronize(step.end.get()), op_);
  step.is_open = false;
  float time = 0;
  check_cuda(driver.event_elapsed(&time, step.start.get(), step.end.get()), op_);
  if (step.is_measured && time < kShort && 2 * step.pairs > pairs_) pairs_ *= kGrowth;
  if (step.is_measured && time > kLong) pairs_ = std::min(pairs_, step.pairs) / 2;
  done_pairs_ += step.pairs;
  const double total = static_cast<double>(sizes_.m) * static_cast<double>(sizes_.n);
  if (arguments_.progress && !arguments_.progress(std::min(done_pairs_, total), total)) throw Cancelled();
  stop_if_cancelled();
}

void StreamRun::step(std::int64_t row, std::int64_t rows, std::int64_t at, std::int64_t count, std::int64_t& done) {
  // Kernels that are compiled first say nothing about the time of a step.
  constexpr auto kOfLaunches = std::chrono::milliseconds(20);
  const CudaDriver& driver = *cuda_driver();
  bring(at, count);
  check_cuda(driver.event_record(arrived_.get(), staging_.stream()), op_);
  check_cuda(driver.stream_wait(work_.get(), arrived_.get(), 0), op_);
  Step& own = steps_ % 2 == 0 ? first_step_ : second_step_;
  Step& before = steps_ % 2 == 0 ? second_step_ : first_step_;
  ++steps_;
  const auto start = std::chrono::steady_clock::now();
  check_cuda(driver.event_record(own.start.get(), work_.get()), op_);
  compute(row, rows, at, count);
  check_cuda(driver.event_record(own.end.get(), work_.get()), op_);
  own.is_open = true;
  own.is_measured = std::chrono::steady_clock::now() - start < kOfLaunches;
  own.pairs = static_cast<double>(rows) * static_cast<double>(count);
  download(done);
  settle(before);
}

/// The result is on the device once what is in the stream is done.
void StreamRun::finish(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
                       bool ends_rows) {
  const cuda::OwnEvent& ready = result_buffer_ == 0 ? ready_first_ : ready_second_;
  check_cuda(cuda_driver()->event_record(ready.get(), work_.get()), op_);
  pending_ = {row, rows, column, columns, result_buffer_, ends_rows};
  result_buffer_ = 1 - result_buffer_;
}

void StreamRun::download(std::int64_t& done) {
  if (!pending_) return;
  const Pending result = *pending_;
  pending_.reset();
  if (has_downloads()) {
    const cuda::OwnEvent& ready = result.buffer == 0 ? ready_first_ : ready_second_;
    check_cuda(cuda_driver()->stream_wait(staging_.stream(), ready.get(), 0), op_);
    if (writes_pairs()) {
      const Tensor& out = call_.out;
      char* const data = element(out, result.column * out.strides[1]);
      const cuda::HostMatrix to{data, sizes_.pair_bytes, result.columns, out.strides[0], out.strides[1]};
      staging_.download(to, result.row, result.rows,
                        reinterpret_cast<CuPointer>(workspace_.at<char>(tiles_[result.buffer])));
    } else {
      totals_.download(staging_, workspace_, result.row, result.rows, result.buffer);
    }
    if (result.ends_rows) done = result.row + result.rows;
  }
}

void StreamRun::run(std::int64_t& done) {
  done_pairs_ = static_cast<double>(done) * static_cast<double>(sizes_.n);
  for (std::int64_t row = done; row < sizes_.m;) {
    const std::int64_t rows = rows_of(sizes_.m - row);
    x_buffer_ = 1 - x_buffer_;
    x_.upload(staging_, workspace_, x_buffer_, 0, row, rows);
    std::int64_t at = 0;
    do {
      const std::int64_t count = points_of(sizes_.n - at, rows);
      step(row, rows, at, count, done);
      at += count;
      if (writes_pairs()) finish(row, rows, at - count, count, at == sizes_.n);
    } while (at < sizes_.n);
    row += rows;
    if (writes_pairs()) continue;
    totals_.store(workspace_, place_, row - rows, rows, result_buffer_);
    finish(row - rows, rows, 0, 0, true);
  }
  download(done);
  check_cuda(cuda_driver()->stream_synchronize(work_.get()), op_);
  done = sizes_.m;
}

/// Memory that a call no longer needs goes back to the device.
struct Trim {
  int device;
  const char* op;
  ~Trim() {
    try {
      const CudaScope scope(device);
      cuda::trim_pool(device, op);
    } catch (const Error&) {  // the call has its result, or an error of its own
    }
  }
};

}  // namespace

void run_streamed(int device, const Formula& f, const Tensor& x, const Tensor* z, const Streamed& call,
                  const Arguments& arguments, Context& context) {
  static constexpr const char* kNames[] = {"pairwise", "kernel_product", "kernel_reduce", "knn", "kernel_gradient"};
  constexpr std::int64_t kLeastBytes = 1024;
  const char* op = arguments.verb != nullptr ? arguments.verb : kNames[static_cast<int>(call.verb)];
  const Tensor& columns = z != nullptr ? *z : x;
  check_axes(op, x, columns, call, arguments);
  check(f, x, columns, call, arguments, context);
  if (call.out.count() == 0 || arguments.queue.rehearsal != nullptr) return;
  need_cuda(op);
  (void)cuda_device(device);
  const Trim trim{device, op};
  const CudaScope scope(device);
  const bool is_there = call.out.device.kind == DeviceKind::cuda || call.indices.device.kind == DeviceKind::cuda;
  if (is_there) check_cuda(cuda_driver()->context_synchronize(), op);  // what is still to be done with the outputs
  std::int64_t done = 0, bytes = costs_of(device, context).memory;
  for (;;) {
    StreamRun run(op, device, f, x, columns, call, arguments, context);
    try {
      run.prepare(bytes);
      return run.run(done);
    } catch (const DeviceMemoryError&) {
      bytes = run.bytes() / 2;
      if (bytes < kLeastBytes) throw;
    }
  }
}

}  // namespace mercer::ops
