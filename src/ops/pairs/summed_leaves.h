// What a pass over the pairs adds up in addition to its field.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace mercer::ops {

/// Sums that a pass adds up in addition to its field, but for those by w, at most: registers hold no more.
inline constexpr std::size_t kMostSums = 8;

/// The leaves of a formula by whose derivatives sums can be.
struct SummedLeaves {
  std::vector<std::string> params;
  bool row = false, w = false;

  bool has(const std::string& name) const {
    return name == "row" ? row : std::find(params.begin(), params.end(), name) != params.end();
  }
};

/// Which of the results that are asked for one pass has in addition to the field.
struct PassParts {
  bool sums = true, weights = true, product = true;
};
/// Where one of the names is no leaf that the formula reads, an exponent that became a number say, the pass has none
/// of the sums of one value a pair.
inline PassParts parts_of(const SummedLeaves& leaves, const std::vector<std::string>& names, bool by_w) {
  const bool has_all = names.size() <= kMostSums && std::all_of(names.begin(), names.end(), [&](const auto& name) {
                         return leaves.has(name.starts_with("p:") ? name.substr(2) : name);
                       });
  if (has_all && (!by_w || leaves.w)) return {};
  return {false, leaves.w, false};
}

}  // namespace mercer::ops
