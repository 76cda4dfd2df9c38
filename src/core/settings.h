// What the calls of one thread want in place of what their context says.
#pragma once

#include <optional>

#include "mercer/device.h"

namespace mercer {

struct Settings {
  std::optional<int> threads;
  std::optional<Target> target;
  std::optional<Precision> precision;
};

/// While it lives, calls of this thread follow these settings, and so do the workers that help them; null: those of
/// the context.
class WithSettings {
 public:
  explicit WithSettings(const Settings* settings) : before_(current_) { current_ = settings; }
  ~WithSettings() { current_ = before_; }
  WithSettings(const WithSettings&) = delete;
  WithSettings& operator=(const WithSettings&) = delete;
  static const Settings* current() { return current_; }

 private:
  static thread_local const Settings* current_;
  const Settings* before_;
};

/// The setting of this thread's calls, or what the context says.
template <class T>
T setting(std::optional<T> Settings::* field, T of_context) {
  const Settings* settings = WithSettings::current();
  return settings != nullptr && settings->*field ? *(settings->*field) : of_context;
}

}  // namespace mercer
