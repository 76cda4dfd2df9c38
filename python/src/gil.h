// The interpreter's lock, given up and taken by threads that may outlive the interpreter: a daemon thread that asks for
// the lock while Python ends is ended there by CPython, which unwinds its stack through C++ that must not be unwound.
// Such a thread sleeps until the process is gone instead.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace mercer::python {

template <class Take>
auto take_lock_or_sleep(const Take& take) {
  try {
    return take();
  } catch (const abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

/// While it lives, the thread does not hold the lock.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    take_lock_or_sleep([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// While it lives, the thread holds the lock.
class Locked {
 public:
  Locked() : state_(take_lock_or_sleep([] { return PyGILState_Ensure(); })) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace mercer::python
