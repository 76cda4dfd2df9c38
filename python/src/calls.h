// One call of a verb: its arrays, parameters and options gathered with the GIL held, run with it released.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "backend/rehearsal.h"
#include "core/system/coarse_clock.h"
#include "core/system/parallel.h"
#include "gil.h"
#include "mercer/explain.h"
#include "mercer/pairwise.h"
#include "queues.h"
#include "settings.h"

namespace mercer::python {

/// Asked by the back end now and then: hands the interpreter its signals (Ctrl-C) every 50 ms and, when asked to, draws
/// a bar once the work has taken two seconds.
class Watch {
 public:
  Watch(const char* verb, bool shows_bar)
      : verb_(verb), shows_bar_(shows_bar || wants_bars), start_(Clock::now()), last_(start_) {}
  ~Watch() { close(); }
  /// False to cancel; the Python error is then set. Called without the GIL.
  bool step(double done, double total);
  /// Runs `work` without the GIL, asked all the while; turns a cancelled call into the Python error that cancelled it.
  /// The GIL is kept where that `is_short`: to give it up and take it again is a twentieth of a call on tiny arrays.
  template <class Work>
  void run(const Work& work, bool is_short = false);
  /// Called after each product of the work that this thread runs, which a bar counts.
  static void count_product() {
    if (current_ != nullptr) ++current_->products_;
  }
  /// Whether all calls of this thread show bars, those too that have no option of their own.
  static thread_local bool wants_bars;

 private:
  /// Asked by work that does not know how much of it is done.
  bool go_on();
  template <class Draw>
  bool ask(const Draw& draw);
  bool is_due();
  void close() noexcept;

  using Clock = CoarseClock;
  const char* verb_;
  bool shows_bar_;
  Clock::time_point start_, last_;
  std::int64_t products_ = 0;
  nb::object bar_;
  static thread_local Watch* current_;
};

/// Hands Python's logging what the engine has said since. With the GIL.
void deliver_messages();

/// Before the first call of a process: a worker of PyTorch's DataLoader has as many threads as PyTorch has there. With
/// the GIL.
void follow_worker();
/// A forked child may be one.
void forget_worker();

/// While it lives, calls of this thread are rehearsed: outputs that the caller does not give are not made, nothing
/// runs.
class Measuring {
 public:
  Measuring() : before_(current_) { current_ = this; }
  ~Measuring() { current_ = before_; }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;
  static Measuring* current() { return current_; }

  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace};

 private:
  static thread_local Measuring* current_;
  Measuring* before_;
};

/// The options that every verb shares, as Python gave them.
struct Options {
  nb::handle row, col, w, i_offset, j_offset, workspace, progress;
  nb::dict params;
  nb::handle device = {};  // of verbs that stream arrays of the host to a GPU

  bool streams() const { return device.is_valid() && !device.is_none(); }
};

/// What a verb takes in addition to its points and options.
struct Extras {
  std::vector<std::pair<const char*, nb::handle>> arrays;    // v, coef, amplitude
  std::vector<std::pair<const char*, nb::object>> settings;  // k, reduce
};

/// A whole number of 64 bits.
std::int64_t to_offset(nb::handle object, const char* verb, const char* name);
/// The index of a CUDA device: "cuda", "cuda:1", such a device of PyTorch's, or a whole number.
int to_cuda_index(nb::handle device, const char* verb);
/// The value of a parameter that is no array: a number of Python or NumPy.
double to_number(nb::handle value, const char* verb, const char* name);
/// (M, N, K), any sequence of three whole numbers.
ExplainShape to_shape(nb::handle shape, const char* verb);
/// A dtype that points may have, by name.
Dtype to_dtype(const std::string& name, const char* verb);

class Call {
 public:
  static constexpr double kMany = 1e300;  // multiplications, where nobody has counted them
  /// `z` may be None: the same points as x.
  Call(const char* verb, const Formula& formula, nb::handle x, nb::handle z, const Options& options);
  /// `f` as the user wrote it; static options of a zoo entry are taken out of options.params.
  Call(const char* verb, nb::handle f, nb::handle x, nb::handle z, Options options);

  const char* verb() const { return verb_; }
  const Formula& formula() const { return formula_; }
  const Tensor& x() const { return x_.tensor(); }
  /// nullptr for the same points.
  const Tensor* z() const { return z_; }
  const Arguments& arguments() const { return arguments_; }
  std::int64_t rows() const { return x().shape[x().ndim() - 2]; }
  std::int64_t columns() const { return z_ ? z_->shape[z_->ndim() - 2] : rows(); }
  Dtype compute_dtype() const { return compute_type(x().dtype); }
  /// The leading axes of the output; `extra` are those of the other arrays of the call.
  std::vector<std::int64_t> batch(const std::vector<std::int64_t>& extra = {}) const;

  /// The CUDA device that arrays of the host are to stream to; absent where the arrays say where the call runs.
  std::optional<int> device() const { return device_; }
  /// Throws where the file of a memory map is shorter than an array in it: reading that would end the process.
  void require_whole_files() const;

  /// Reads one more array of the call.
  const Tensor& input(nb::handle object, const char* name);
  /// The caller's `out`, or a new array of the caller's library; returns the object, and its view in `view`.
  nb::object output(nb::handle out, const char* name, Dtype dtype,
                    const std::function<std::vector<std::int64_t>()>& shape, const Tensor*& view);
  /// Runs `work` without the GIL; turns a cancelled call into the Python error that cancelled it. `terms`: about how
  /// many multiplications it takes, where that is known.
  template <class Work>
  void run(Work&& work, double terms = kMany);
  /// As run(), for what goes before the call's own work, and puts nothing into a stream.
  template <class Work>
  void prepare(const Work& work) {
    watch_.run(work);
  }
  /// After work that ran without it: what the arrays' own streams do next waits for that.
  void finish() { queue_.release_streams(); }

 private:
  CallSettings settings_;
  const char* verb_;
  Formula formula_;
  Array x_;
  CallQueue queue_;
  const Tensor* z_ = nullptr;  // of held_; null for the same points
  std::byte memory_[1024];  // of the first arrays that are held
  std::pmr::monotonic_buffer_resource resource_{memory_, sizeof(memory_)};
  std::pmr::list<Array> held_{&resource_};
  std::list<Tensor> placeholders_;
  Arguments arguments_;
  Watch watch_;
  std::optional<int> device_;

  void require_streamable(const Options& options);
  void require_home(const Array& array) const;
  void require_no_device(nb::handle name) const;
  void require_parameter(const std::string& name) const;
  void read_points(nb::handle x, nb::handle z);
  void read_params(const nb::dict& params);
  Argument read_param(nb::handle name, nb::handle value);
  const Tensor& placeholder(Dtype dtype, std::vector<std::int64_t> shape);
  void wait_for(const Array& array);
  const Array& hold(nb::handle object, const char* name, Access access);
  const Tensor& hold_param(nb::handle object, const char* name);
};

template <class Work>
void Watch::run(const Work& work, bool is_short) {
  follow_worker();
  struct Current {
    explicit Current(Watch* watch) : before(std::exchange(current_, watch)) {}
    ~Current() { current_ = before; }
    Watch* before;
  };
  const Current current(this);
  try {
    std::optional<Unlocked> unlocked;
    if (!is_short) unlocked.emplace();
    const CancelScope scope([this] { return go_on(); });
    work();
  } catch (const Cancelled&) {
    throw nb::python_error();
  }
}

template <class Work>
void Call::run(Work&& work, double terms) {
  constexpr double kFew = 1 << 14;  // a microsecond
  watch_.run(work, terms <= kFew && !x_.on_cuda());
  finish();
}

}  // namespace mercer::python
