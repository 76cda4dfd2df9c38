// Errors of every entry point: five kinds, one message form, "op: rule. Received what."
#pragma once

#include <stdexcept>
#include <string>

namespace mercer {

enum class ErrorKind {
  invalid_argument,  ///< a rule of the call was broken            (Python: ValueError)
  unsupported,       ///< right, but not offered                   (Python: NotImplementedError)
  compile,           ///< code generation failed                   (Python: mercer.CompileError)
  device,            ///< a device or its memory failed            (Python: mercer.DeviceError)
  numerical,         ///< the data has no answer (a singular matrix) (Python: mercer.LinAlgError)
};

/// Everything Mercer throws. `what()` states the rule and what was received.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace mercer
