#include "plan/kron_step.h"

#include <fmt/format.h>

namespace mercer::plan {

std::string KronStepSource::key() const {
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", static_cast<int>(type),
                     static_cast<int>(target), p, q, right, in_p, out_q, pitch, left.count, left.in, left.out,
                     middle.count, middle.in, middle.out, ahead_in, ahead_out, streams);
}

}  // namespace mercer::plan
