// Keys of caches, made in every call: bytes, where text would take longer than all else a small call does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace mercer {

/// A plain struct says what tells two of its values apart: `auto parts() const { return std::tie(…); }`.
template <class T>
concept HasParts = requires(const T& value) { value.parts(); };

template <class T>
void append_to_key(std::string& key, const T& part) {
  if constexpr (HasParts<T>) {
    std::apply([&](const auto&... parts) { (append_to_key(key, parts), ...); }, part.parts());
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    const std::string_view text = part;
    append_to_key(key, text.size());
    key += text;
  } else {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    key.append(reinterpret_cast<const char*>(&part), sizeof(part));
  }
}

/// Equal keys are equal values, for calls with parts of the same types; texts may have any length.
template <class... Parts>
std::string cache_key(const Parts&... parts) {
  std::string key;
  key.reserve((sizeof(Parts) + ...) + 64);
  (append_to_key(key, parts), ...);
  return key;
}

}  // namespace mercer
