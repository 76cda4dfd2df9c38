// A value that threads share and whoever needs it first makes, without a lock: making may take long, ask whether the
// call is to end, and throw. Where two threads make it at a time the second one's is thrown away.
#pragma once

#include <atomic>
#include <memory>

namespace mercer {

template <class T>
class MadeOnce {
 public:
  MadeOnce() = default;
  /// A copy makes its own.
  MadeOnce(const MadeOnce&) {}
  MadeOnce& operator=(const MadeOnce&) = delete;
  ~MadeOnce() { delete value_.load(std::memory_order_relaxed); }

  /// Null until it is made.
  const T* known() const { return value_.load(std::memory_order_acquire); }
  /// `make` returns a std::unique_ptr<T>.
  template <class Make>
  const T& get(const Make& make) const {
    if (const T* const value = known()) return *value;
    std::unique_ptr<T> made = make();
    T* before = nullptr;
    if (value_.compare_exchange_strong(before, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
      return *made.release();
    return *before;
  }

 private:
  mutable std::atomic<T*> value_{nullptr};
};

}  // namespace mercer
