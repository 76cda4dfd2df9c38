// Division of counts into parts.
#pragma once

namespace mercer {

/// Parts of `size` that hold `count`, the last one perhaps in part. Both are not negative.
template <class Count, class Size>
constexpr auto ceil_div(Count count, Size size) {
  return (count + size - 1) / size;
}

/// The least multiple of `size` that is at least `count`.
template <class Count, class Size>
constexpr auto round_up(Count count, Size size) {
  return ceil_div(count, size) * size;
}

}  // namespace mercer
