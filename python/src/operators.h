// Operators of mercer.linalg as Python writes them: a matrix, a KernelOperator, or an object with a function of its own
// that multiplies.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "calls.h"
#include "linalg_call.h"
#include "mercer/linalg.h"

namespace mercer::python {

/// A kernel matrix as it was written down. Everything is checked when it is made, but for what PyTorch follows, which
/// is when it is used.
struct KernelOperator {
  KernelOperator(nb::object f, nb::object x, nb::handle ridge, nb::dict params);

  nb::object f, x;
  double ridge = 0;
  nb::dict params;
  std::int64_t order = 0;
};

/// A number of the caller's; in C++ zero stands for the default, which here None does.
template <class T>
T not_zero(T value, const char* verb, const char* name) {
  if (value == 0)
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must be positive. Received 0.", verb, name));
  return value;
}

/// One call on an operator, its arrays gathered with the GIL held.
class OperatorCall {
 public:
  OperatorCall(const char* verb, nb::handle a);
  OperatorCall(const char* verb, const KernelOperator& kernel);

  const linalg::Operator& matrix() const { return *matrix_; }
  /// Null for a matrix.
  const KernelOperator* kernel() const { return kernel_; }
  const Call& kernel_call() const { return *kernel_call_; }
  /// What a KernelOperator, or an object that multiplies, adds to the diagonal; 0 for a matrix.
  double ridge() const { return ridge_; }
  /// Whose array results are like.
  Library& library() const { return *library_; }
  nb::handle like() const { return like_; }
  /// A further array of the call.
  const Tensor& input(nb::handle object, const char* name);
  /// The caller's array, or a new one of the caller's library.
  struct Output {
    nb::object object;
    const Tensor* view = nullptr;
  };
  Output output(nb::handle out, const char* name, Dtype dtype, const std::vector<std::int64_t>& shape);
  /// What the arrays' own streams do next waits for the work.
  void finish();

 private:
  void take_kernel();
  void take_products(nb::handle a);

  const char* verb_;
  const KernelOperator* kernel_ = nullptr;
  double ridge_ = 0;
  std::optional<LinalgCall> stored_call_;
  std::optional<Call> kernel_call_;
  std::optional<linalg::Operator> matrix_;
  Library* library_ = nullptr;
  nb::object like_;
};

}  // namespace mercer::python
