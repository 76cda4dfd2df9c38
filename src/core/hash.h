// xxHash of bytes: names of cache files, keys of plans, checksums. Equal on every machine and in every version.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mercer {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
  std::string to_text() const;  ///< 32 hexadecimal digits
};

std::uint64_t hash64(std::string_view bytes, std::uint64_t seed = 0);
Hash128 hash128(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace mercer
