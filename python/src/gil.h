// The interpreter's lock, given up and taken by threads that may outlive the interpreter. A daemon thread that asks for
// the lock while Python ends is ended there by CPython, which unwinds its stack through C++ that must not be unwound;
// one that asks when Python has ended reads freed memory. Such threads sleep until the process is gone instead.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

#if !defined(__GLIBCXX__)
#include <pthread.h>
#include <setjmp.h>
extern "C" {  // glibc's, behind pthread_cleanup_push in C
void __pthread_register_cancel(__pthread_unwind_buf_t* buffer);
void __pthread_unregister_cancel(__pthread_unwind_buf_t* buffer);
}
#endif

namespace mercer::python {

/// Whether this thread gave the lock up while Python ended: it is the one that ends it, by a destructor that computes.
inline thread_local bool ends_python = false;

[[noreturn]] inline void sleep_until_the_end() {
  for (;;) ::pause();
}

#if defined(__GLIBCXX__)
/// What `work` returns, which may give the lock up and take it again.
template <class Work>
auto end_asleep(const Work& work) {
  try {
    return work();
  } catch (const abi::__forced_unwind&) {
    sleep_until_the_end();
  }
}
#else
/// Elsewhere than in libstdc++ no handler sees that unwinding, and an unwinder that is linked into the module must not
/// meet glibc's. glibc jumps to a registered place before it comes to this frame.
template <class Work>
auto end_asleep(const Work& work) {
  __pthread_unwind_buf_t place;
  if (__sigsetjmp(reinterpret_cast<__jmp_buf_tag*>(place.__cancel_jmp_buf), 0) != 0) sleep_until_the_end();
  __pthread_register_cancel(&place);
  struct Leave {
    __pthread_unwind_buf_t* place;
    ~Leave() { __pthread_unregister_cancel(place); }
  };
  const Leave leave{&place};
  return work();
}
#endif

template <class Take>
auto take_lock_or_sleep(const Take& take) {
  if (!Py_IsInitialized()) {
    const bool may_end_python = ends_python || ::gettid() == ::getpid();
    if (!may_end_python) sleep_until_the_end();
  }
  return end_asleep(take);
}

/// While it lives, the thread does not hold the lock.
class Unlocked {
 public:
  Unlocked() : ended_python_(std::exchange(ends_python, !Py_IsInitialized())), state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    take_lock_or_sleep([this] { PyEval_RestoreThread(state_); });
    ends_python = ended_python_;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  bool ended_python_;
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
