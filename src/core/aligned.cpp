#include "core/aligned.h"

#include "core/env.h"

namespace mercer {

bool poisons_memory() {
  static const bool poisons = env_flag("MERCER_POISON");
  return poisons;
}

}  // namespace mercer
