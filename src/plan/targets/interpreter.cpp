// The interpreter as a target. Every primitive is a pass over blocks in the first-level cache: loads and a store take
// the time, and there are no pipes to balance.
#include "plan/cpu/target.h"

namespace mercer::plan {
namespace {

/// All primitives cost what logic does; the other kinds are there for the text of a count.
constexpr PortUses passes() {
  PortUses uses{};
  uses[static_cast<std::size_t>(Kind::logic)] = {0b1111, 2.6};
  uses[static_cast<std::size_t>(Kind::multiply)] = {0b0011, 0};
  uses[static_cast<std::size_t>(Kind::add)] = {0b1100, 0};
  uses[static_cast<std::size_t>(Kind::permute)] = {0b0110, 0};
  return uses;
}
constexpr PortUses kPasses = passes();

}  // namespace

extern const TargetInfo kInterpreter;
const TargetInfo kInterpreter{
    Target::interpreter, "interpreter", 64, 32, 0, false, &kPasses, [] { return true; }};

}  // namespace mercer::plan
