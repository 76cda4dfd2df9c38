#include "core/aligned.h"

#include "core/env.h"
#include "core/mutex.h"

namespace mercer {

bool poisons_memory() {
  static constinit Lazy<bool> poisons;
  return poisons.get([] { return env_flag("MERCER_POISON"); });
}

}  // namespace mercer
