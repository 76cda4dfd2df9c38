#include "backend/cg_columns.h"

#include <algorithm>
#include <array>
#include <optional>

#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/pinned.h"
#include "backend/cuda/runtime/side_streams.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kRowsOfPart = 8 * kThreads, kMostParts = 64;

/// What columns said of themselves some rounds ago. The device is never waited for while it has no other round to
/// work on: the host looks at the flags of a round when the next one is in the stream.
class LateFlags {
 public:
  LateFlags(const PairJob& place, const int* flags, std::int64_t columns)
      : place_(place), flags_(flags), columns_(columns), bytes_(static_cast<std::size_t>(columns) * sizeof(int)),
        memory_(2 * bytes_, place.op) {
    for (CuEvent& event : events_) check_cuda(cuda_driver()->event_create(&event, kCuEventNoTiming), place.op);
  }
  ~LateFlags() {
    // The device may still write to the memory, which others get next.
    for (int slot = 0; slot < std::min(asked_, 2); ++slot) cuda_driver()->event_synchronize(events_[slot]);
    for (CuEvent event : events_)
      if (event != nullptr) cuda_driver()->event_destroy(event);
  }
  LateFlags(const LateFlags&) = delete;
  LateFlags& operator=(const LateFlags&) = delete;

  /// Asks for the flags as they are now in the stream; whether all columns had ended one question ago.
  bool ask() {
    const int slot = asked_ % 2;
    check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(of(slot)), reinterpret_cast<CuPointer>(flags_),
                                         bytes_, place_.stream()),
               place_.op);
    check_cuda(cuda_driver()->event_record(events_[slot], place_.stream()), place_.op);
    if (++asked_ < 2) return false;
    check_cuda(cuda_driver()->event_synchronize(events_[1 - slot]), place_.op);
    const int* const said = of(1 - slot);
    return std::none_of(said, said + columns_, [](int status) { return status == kCgLive; });
  }

 private:
  int* of(int slot) const { return memory_.as<int>() + slot * columns_; }

  const PairJob& place_;
  const int* const flags_;
  const std::int64_t columns_;
  const std::size_t bytes_;
  PinnedMemory memory_;
  std::array<CuEvent, 2> events_{};
  int asked_ = 0;
};

class Columns final : public CgColumns {
 public:
  Columns(const Sizes& sizes, Device device, const Queue& queue)
      : sizes_(sizes), device_(device), queue_(queue), place_(place_of(sizes.op, device, queue_, sizes.type)),
        scope_(device.index), kernels_(cg_kernels(place_)),
        parts_(std::clamp<std::int64_t>(ceil_div(sizes.length, kRowsOfPart), 1, kMostParts)) {
    const auto element = static_cast<std::int64_t>(size_of(sizes.type));
    const auto add = [&](std::int64_t values, std::int64_t bytes) {
      return memory_.add(checked_product({values, sizes.columns, bytes}));
    };
    std::array<std::int64_t, 8> vectors{};
    const std::size_t count = sizes.indefinite ? 8 : sizes.preconditioned ? 6 : 5;
    for (std::size_t i = 0; i < count; ++i) vectors[i] = add(sizes.length, element);
    const std::int64_t sums = add(5 * parts_, sizeof(double)), states = add(2, sizeof(CgColumn)),
                       flags = add(1, sizeof(int)), left = memory_.add(sizeof(long long));
    memory_.take(place_);
    const auto at = [&](std::size_t i) { return memory_.at(vectors[i]); };
    a_.right = at(0);
    a_.x = at(1);
    a_.r = at(2);
    a_.p = at(3);
    a_.product = at(4);
    a_.z = sizes.preconditioned ? at(5) : a_.r;
    if (sizes.indefinite) {
      a_.w = at(5);
      a_.w_before = at(6);
      a_.v_before = at(7);
    }
    a_.sums = memory_.at<double>(sums);
    a_.largest = a_.sums + 2 * parts_ * sizes.columns;  // that of the curvatures
    a_.state = memory_.at<CgColumn>(states);
    a_.state_next = a_.state + sizes.columns;
    a_.flags = memory_.at<int>(flags);
    left_ = memory_.at<long long>(left);
    // Compiled, and the stream made, before a capture.
    if (cuda_driver()->has_conditions()) {
      condition_ = cg_condition_kernel(place_);
      side_ = side_stream(device.index, 0, sizes.op);
    }
    a_.rows = sizes.length;
    a_.columns = sizes.columns;
    a_.parts = parts_;
  }

  Tensor operand() const override { return all(a_.p); }
  Tensor product() const override { return all(a_.product); }
  Tensor residual() const override { return all(a_.r); }
  Tensor preconditioned() const override { return all(const_cast<void*>(a_.z)); }

  void begin(const Tensor& b, const Tensor* guess, const Ridges& ridges) override {
    a_.amount = ridges.number;
    a_.ridges = ridges.numbers != nullptr ? ridges.numbers->data : nullptr;
    if (ridges.numbers != nullptr) {
      a_.ridge_step = ridges.numbers->strides[0];
      a_.ridge_is_double = ridges.numbers->dtype == Dtype::float64 ? 1 : 0;
    }
    a_.b = b.data;
    a_.b_row = b.strides[0];
    a_.b_col = b.strides[1];
    a_.guess = guess != nullptr ? guess->data : nullptr;
    if (guess != nullptr) {
      a_.guess_row = guess->strides[0];
      a_.guess_col = guess->strides[1];
    }
    run("cg_find_scales");
    run("cg_begin");
  }

  void step() override {
    run("cg_measure_curvature");
    run(sizes_.indefinite ? "minres_step" : "cg_step");
  }

  void turn(Round round) override {
    a_.turn = turn_of(sizes_, round);
    if (sizes_.preconditioned) run("cg_measure_preconditioned");
    run(sizes_.indefinite ? "minres_turn_columns" : "cg_turn_columns");
    std::swap(a_.state, a_.state_next);
  }

  bool has_ended() override {
    if (!flags_) {
      if (cuda_is_capturing(place_.device, place_.stream())) return false;
      flags_.emplace(place_, a_.flags, sizes_.columns);
    }
    return flags_->ask();
  }

  void end(const Tensor& x, const Tensor* info, const Tensor* rounds) override {
    a_.out = x.data;
    a_.out_row = x.strides[0];
    a_.out_col = x.strides[1];
    a_.info = info != nullptr ? static_cast<long long*>(info->data) : nullptr;
    a_.info_step = info != nullptr ? info->strides[0] : 0;
    a_.rounds_out = rounds != nullptr ? static_cast<long long*>(rounds->data) : nullptr;
    a_.rounds_step = rounds != nullptr ? rounds->strides[0] : 0;
    run("cg_end");
  }

  bool repeats() const override {
    return side_ != nullptr && cuda_is_capturing(place_.device, place_.stream());
  }

  void repeat(std::int64_t most, std::int64_t bytes, const std::function<void(const Queue& queue)>& rounds) override {
    const CudaDriver& driver = *cuda_driver();
    const CuStream outer = place_.stream();
    Queue plain = queue_;
    plain.allocate = {};
    PairJob in_outer = place_;
    in_outer.queue = &plain;
    Workspace scratch;
    const std::int64_t at = scratch.add(std::max<std::int64_t>(bytes, 1));
    scratch.take(in_outer);
    const Recorded before = recorded(outer);
    CgConditionArguments go_on{};
    go_on.flags = a_.flags;
    go_on.left = left_;
    go_on.columns = sizes_.columns;
    go_on.rounds = most;
    CuConditionalParams params;
    check_cuda(driver.context_current(&params.context), sizes_.op);
    check_cuda(driver.graph_condition(&params.condition, before.graph, params.context, 0, kCuAssignDefault), sizes_.op);
    go_on.condition = params.condition;
    go_on.begins = 1;
    launch(condition_, place_, {1}, 32, 0, go_on);
    params.kind = most > 1 ? kCuConditionWhile : kCuConditionIf;
    const Recorded after = recorded(outer);
    CuGraphNode node = nullptr;
    check_cuda(driver.graph_add_node(&node, after.graph, after.nodes, after.edges, after.count, &params), sizes_.op);
    check_cuda(driver.stream_set_dependencies(outer, &node, nullptr, 1, kCuSetDependencies), sizes_.op);
    check_cuda(driver.stream_begin_capture_to_graph(side_, params.body[0], nullptr, nullptr, 0, kCuCaptureThreadLocal),
               sizes_.op);
    Queue inner = plain;
    inner.stream = side_;
    inner.allocate = [&](std::int64_t wanted) -> void* { return wanted <= bytes ? scratch.at<>(at) : nullptr; };
    queue_.stream = side_;
    CgColumn *const state = a_.state, *const next = a_.state_next;
    const auto finish = [&] {
      queue_.stream = outer;
      CuGraph body = nullptr;
      return driver.stream_end_capture(side_, &body);
    };
    try {
      rounds(inner);
      // States where the next round looks for them.
      if (a_.state != state) {
        check_cuda(driver.copy_async(reinterpret_cast<CuPointer>(state), reinterpret_cast<CuPointer>(a_.state),
                                     static_cast<std::size_t>(sizes_.columns) * sizeof(CgColumn), side_),
                   sizes_.op);
        a_.state = state;
        a_.state_next = next;
      }
      go_on.begins = 0;
      if (most > 1) launch(condition_, place_, {1}, 32, 0, go_on);
    } catch (...) {
      finish();
      throw;
    }
    check_cuda(finish(), sizes_.op);
  }

  std::vector<CgColumn> states() override {
    std::vector<CgColumn> states(static_cast<std::size_t>(sizes_.columns));
    check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(states.data()),
                                         reinterpret_cast<CuPointer>(a_.state), states.size() * sizeof(CgColumn),
                                         place_.stream()),
               place_.op);
    check_cuda(cuda_driver()->stream_synchronize(place_.stream()), place_.op);
    return states;
  }

 private:
  /// Where a captured stream is in its graph.
  struct Recorded {
    CuGraph graph = nullptr;
    const CuGraphNode* nodes = nullptr;
    const void* edges = nullptr;
    std::size_t count = 0;
  };
  Recorded recorded(CuStream stream) const {
    Recorded found;
    int status = 0;
    std::uint64_t id = 0;
    check_cuda(cuda_driver()->stream_capture_info(stream, &status, &id, &found.graph, &found.nodes, &found.edges,
                                                  &found.count),
               sizes_.op);
    return found;
  }
  Tensor all(void* vectors) const {
    Tensor t(vectors, sizes_.type, {sizes_.length, sizes_.columns}, {1, sizes_.length});
    t.device = device_;
    return t;
  }
  void run(const char* name) {
    const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
    launch(kernel, place_, {parts_ * sizes_.columns, 1}, kThreads, 0, a_);
  }

  const Sizes sizes_;
  const Device device_;
  Queue queue_;
  const PairJob place_;
  const CudaScope scope_;
  const Kernel kernels_;
  const std::int64_t parts_;
  Workspace memory_;
  CgArguments a_{};
  std::optional<LateFlags> flags_;
  Kernel condition_;
  CuStream side_ = nullptr;
  long long* left_ = nullptr;
};

}  // namespace

std::unique_ptr<CgColumns> cg_columns(const CgColumns::Sizes& sizes, Device device, const Queue& queue) {
  return std::make_unique<Columns>(sizes, device, queue);
}

}  // namespace mercer::cuda
