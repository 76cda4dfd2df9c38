#include "plan/kron/kron_step.h"

namespace mercer::plan {

std::string KronStepSource::key() const {
  const std::int64_t parts[] = {static_cast<std::int64_t>(type), static_cast<std::int64_t>(target), p, q, right, in_p,
                                out_q, pitch, left.count, left.in, left.out, middle.count, middle.in, middle.out,
                                ahead_in, ahead_out, streams};
  return {reinterpret_cast<const char*>(parts), sizeof parts};
}

}  // namespace mercer::plan
