// What lists of ways have in common, on GPUs (plan/gpu/ways.h) and on CPUs (plan/cpu/ways.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mercer::plan {

enum class Verb : std::uint8_t { pairwise, product, reduce, nearest, gradient };
inline constexpr Verb kVerbs[] = {Verb::pairwise, Verb::product, Verb::reduce, Verb::nearest, Verb::gradient};
const char* name_of(Verb verb);  ///< "kernel_product"

/// A sentence, or one about two numbers.
struct Refusal {
  const char* reason = "";
  std::optional<double> least = {};  // what a call must have; it has `received`
  double received = 0;
  std::string to_text() const;
};

/// Ways to take whatever the sizes are, for tests and comparisons: names, as "materialised" or
/// "kernel_product:materialised,direct". A verb that has none of them chooses as ever; one that has takes the first of
/// them, in its list's order, that serves the call at all.
class ForcedWays {
 public:
  ForcedWays() = default;
  /// The names of a verb's ways, on all devices.
  using NamesOfWays = std::vector<std::string> (*)(Verb verb);
  /// Throws invalid_argument for a name that no verb has; `what` names, in errors, the thing that was given.
  ForcedWays(const std::string& text, const char* what, NamesOfWays names_of);
  bool names(Verb verb, const char* way) const;
  /// Whether one of these ways of a verb is named.
  template <class Ways>
  bool any_of(Verb verb, const Ways& ways) const {
    return !names_.empty() && std::ranges::any_of(ways, [&](const auto* way) { return names(verb, way->name); });
  }
  const std::string& text() const { return text_; }

 private:
  struct Name {
    std::string verb, way;  // verb: of all, where empty
  };
  std::string text_;
  std::vector<Name> names_;
};

/// Throws unsupported: none of the forced ways serves. `refusals`: what they said, a sentence each.
[[noreturn]] void fail_forced(Verb verb, const ForcedWays& forced, const std::string& refusals);

}  // namespace mercer::plan
