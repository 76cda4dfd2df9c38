// Locks that survive fork. A forked child has one thread and the memory of many: a lock that another thread held at the
// fork is held for ever, and what it guards may be half written. So whoever takes a lock passes a gate first, which
// fork closes and waits at until no lock is held; parent and child open it again.
//
//   lock:   enter the gate, once a thread ─► the mutex             unlock: the mutex ─► leave the gate
//   fork:   close the gate ─► wait until nobody is inside ─► fork ─► open it
//
// All locks of Mercer are of this kind, and lazy values are made under one in place of static locals, whose guards fork
// does not know. The pool's and that of OpenBLAS's threads are made anew in a child instead (parallel.cpp, lapack.cpp).
// What is done under a lock must not wait for a thread that may be forking: it never takes the lock of Python.
#pragma once

#include <atomic>
#include <mutex>

namespace mercer {

/// Passed by every lock. A thread that is inside may enter again, while fork waits too.
void enter_fork_gate();
void leave_fork_gate() noexcept;

/// Has the interface of std::mutex.
class Mutex {
 public:
  void lock() {
    enter_fork_gate();
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
    leave_fork_gate();
  }

 private:
  std::mutex mutex_;
};

/// Serves as std::once_flag does: `once.call(f)` runs f unless a call of it has returned before.
class Once {
 public:
  template <class Function>
  void call(const Function& function) {
    if (done_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    function();
    done_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> done_{false};
  Mutex mutex_;
};

/// A value made at its first use and never destroyed: threads may be at work while a process ends. Declared as a
/// static constinit variable.
template <class T>
class Lazy {
 public:
  template <class Make>
  T& get(const Make& make) {
    if (T* const known = value_.load(std::memory_order_acquire)) return *known;
    const std::lock_guard lock(mutex_);
    T* value = value_.load(std::memory_order_relaxed);
    if (value == nullptr) value_.store(value = new T(make()), std::memory_order_release);
    return *value;
  }
  T& get() {
    return get([] { return T(); });
  }

 private:
  std::atomic<T*> value_{nullptr};
  Mutex mutex_;
};

}  // namespace mercer
