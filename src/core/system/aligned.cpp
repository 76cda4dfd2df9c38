#include "core/system/aligned.h"

#include "core/system/env.h"
#include "core/system/mutex.h"

namespace mercer {

bool poisons_memory() {
  static constinit Lazy<bool> poisons;
  return poisons.get([] { return env_flag("MERCER_POISON"); });
}

}  // namespace mercer
