// One call of a verb of linear algebra: its arrays and options gathered with the GIL held, run with it released.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "arrays.h"
#include "calls.h"
#include "mercer/linalg.h"
#include "queues.h"
#include "settings.h"

namespace mercer::python {

class LinalgCall {
 public:
  /// `name` is that of the square matrices; `overwrite`: they may be written.
  LinalgCall(const char* verb, const char* name, nb::handle a, bool overwrite, nb::handle workspace);

  const char* verb() const { return verb_; }
  const Tensor& a() const { return a_.tensor(); }
  linalg::Options& options() { return options_; }
  /// A number j stands for j, 10 j, 100 j; a sequence for itself.
  void read_jitter(nb::handle jitter);
  /// Reads one more array of the call, which may be written if asked.
  const Tensor& input(nb::handle object, const char* name, bool overwrite = false);

  enum class Layout { rows, columns };
  struct Output {
    nb::object object;  // None while a call is measured
    const Tensor* view = nullptr;
  };
  /// The caller's array, or a new one of the caller's library, with its last two axes in this layout.
  Output output(nb::handle out, const char* name, Dtype dtype, const std::vector<std::int64_t>& shape,
                Layout layout = Layout::rows);
  /// An input that is overwritten. `out` must not be given too.
  Output in_place(nb::handle object, const Tensor& view, nb::handle out, const char* option) const;

  /// Runs `work` without the GIL. With check: `result`, or numerical is thrown. Without: (result, info).
  template <class Work>
  nb::object run(bool check, const std::vector<std::int64_t>& batch, nb::object result, const Work& work) {
    Output info;
    if (!check) {
      info = output(nb::none(), "info", Dtype::int64, batch);
      options_.info = info.view;
    }
    run(work);
    return check ? result : nb::object(nb::make_tuple(result, info.object));
  }
  template <class Work>
  void run(const Work& work) {
    Watch(verb_, false).run([&] { work(options_); });
    finish();
  }
  /// What the arrays' own streams do next waits for the work.
  void finish() { queue_.release_streams(); }

 private:
  void require_type(const Array& array) const;

  CallSettings settings_;
  const char* verb_;
  Array a_;
  CallQueue queue_;
  linalg::Options options_;
  std::deque<Array> held_;
  std::deque<Tensor> views_;
};

}  // namespace mercer::python
