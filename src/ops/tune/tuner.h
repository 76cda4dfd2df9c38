// What tune does, for calls of any kind that plans are chosen for.
#pragma once

#include <functional>

#include "mercer/tune.h"

namespace mercer::ops {

/// A call that is made again and again.
struct TunedCall {
  const char* verb;  // in errors
  const char* does;  // "compute pairs of points": what a call does whose plan can be chosen
  const Queue& queue;
  const ProgressCallback& progress;
  std::function<void(const Queue&)> make;
};

TuneReport tune_call(const TunedCall& call, Context& context);

}  // namespace mercer::ops
