/// \file
/// Errors of every entry point: five kinds, one message form, "op: rule. Received what."
///
/// All arguments are checked before anything is written: a call that failed leaves its outputs as they were, unless its
/// comment says otherwise (a matrix without an answer, a call that was cancelled).
///
/// \code
/// try {
///   mercer::pairwise("sum(abs(x-z))", x, &z, out);
/// } catch (const mercer::Error& error) {
///   if (error.kind() != mercer::ErrorKind::unsupported) throw;
///   std::puts(error.what());
/// }
/// \endcode
#pragma once

#include <stdexcept>
#include <string>

namespace mercer {

/// What went wrong, for programs that act on it.
enum class ErrorKind {
  invalid_argument,  ///< a rule of the call was broken            (Python: ValueError)
  unsupported,  ///< right, but not offered                   (Python: NotImplementedError)
  compile,  ///< code generation failed                   (Python: mercer.CompileError)
  device,  ///< a device or its memory failed            (Python: mercer.DeviceError)
  numerical,  ///< the data has no answer (a singular matrix) (Python: mercer.LinAlgError)
};

/// Everything Mercer throws. `what()` states the rule and what was received.
class Error : public std::runtime_error {
 public:
  /// An error of this kind with this text.
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }  ///< what a program can act on

 private:
  ErrorKind kind_;
};

}  // namespace mercer
