// Work of a foreign library that cannot be interrupted, in a call that can.
#pragma once

#include <functional>

namespace mercer {

/// While it lives, a library is at work that must not be taken down under it. Where that is so on another thread, a
/// process that ends skips what is registered to be run at its end; threads that would begin such work then sleep.
class ForeignWork {
 public:
  ForeignWork();
  ~ForeignWork();
  ForeignWork(const ForeignWork&) = delete;
  ForeignWork& operator=(const ForeignWork&) = delete;
};

/// Runs `work` to its end on a thread of its own, while this one asks `stop_if_cancelled`. Where that ends the call,
/// `work` goes on until it is done and nobody looks at what it made: it must own all that it touches. Where nobody may
/// cancel, or no thread can be had, it runs on this thread. Throws what it throws. A process that ends meanwhile does
/// not wait for it.
void run_apart(std::function<void()> work);

}  // namespace mercer
