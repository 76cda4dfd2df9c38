// "factors[3]", for messages about the factors of a Kronecker product.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>

#include "core/system/mutex.h"
#include "mercer/kron.h"

namespace mercer::ops {

/// Lives as long as the program.
inline const char* factor_name(std::size_t i) {
  static constinit Lazy<std::array<std::string, kron::kMostFactors>> kept;
  const auto& names = kept.get([] {
    std::array<std::string, kron::kMostFactors> made;
    for (std::size_t at = 0; at < made.size(); ++at) made[at] = fmt::format("factors[{}]", at);
    return made;
  });
  return i < names.size() ? names[i].c_str() : "a factor";  // of too many
}

}  // namespace mercer::ops
