// Ports that instructions take, found from times: how long each kind takes alone, in turns with another,
// and in turns with a multiplication and an addition.
//
//   kinds together take   max over sets of ports of   (cycles of those that no other port takes) / ports of the set
//
// with cycles = time alone * ports. Ports of a kind are the ones that explain its times best: some kinds first, by
// trying all of their ports, then one after the other until nothing changes.
#pragma once

#include <array>

#include "plan/cpu/cpu_rows.h"

namespace mercer::plan {

struct PortTimes {
  std::array<double, kKinds> alone{};                     // cycles; 0: there is no such instruction
  std::array<std::array<double, kKinds>, kKinds> pair{};  // of one of each; nothing on the diagonal
  std::array<double, kKinds> with_both{};  // of a multiplication, an addition and one of these
};

/// The times that uses allow.
PortTimes times_of(const PortUses& uses);
PortUses fit_ports(const PortTimes& times);

}  // namespace mercer::plan
