#include "backend/cuda/runtime/batch.h"

#include <algorithm>

#include "core/error.h"

namespace mercer::cuda {

std::int64_t BatchWalk::items() const {
  std::int64_t count = 1;
  for (std::int64_t e : extent) count *= e;
  return count;
}

void BatchWalk::merge(const char* op) {
  if (extent.empty() || (extent.size() == 1 && extent[0] != 1)) return;  // most calls
  BatchWalk merged;
  merged.steps.resize(steps.size());
  for (std::size_t axis = 0; axis < extent.size(); ++axis) {
    if (extent[axis] == 1) continue;
    // The axis before is this one's continuation when each array steps over all of this one there.
    bool alike = !merged.extent.empty();
    for (std::size_t s = 0; s < steps.size(); ++s)
      alike = alike && merged.steps[s].back() == steps[s][axis] * extent[axis];
    if (alike)
      merged.extent.back() *= extent[axis];
    else
      merged.extent.push_back(extent[axis]);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (alike)
        merged.steps[s].back() = steps[s][axis];
      else
        merged.steps[s].push_back(steps[s][axis]);
    }
  }
  *this = std::move(merged);
  if (extent.size() > MERCER_MAX_AXES)
    fail(ErrorKind::unsupported, "{}: at most {} batch axes that step differently are offered on CUDA. Received {}.",
         op, MERCER_MAX_AXES, extent.size());
}

BatchAxes BatchWalk::axes() const {
  BatchAxes axes{};
  axes.count = static_cast<int>(extent.size());
  std::copy(extent.begin(), extent.end(), axes.extent);
  return axes;
}

void BatchWalk::write(std::size_t array, long long (&to)[MERCER_MAX_AXES]) const {
  std::fill(std::begin(to), std::end(to), 0);
  std::copy(steps[array].begin(), steps[array].end(), to);
}

}  // namespace mercer::cuda
