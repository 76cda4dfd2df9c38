// Sines of angles so large that a reduction by multiply-adds would lose their digits: one function for every processor
// but the GPU, which has its own.
#pragma once

#include <cmath>

namespace mercer::ir {

/// |angle| beyond which programs take sine_of_large_angle().
template <class T>
inline constexpr double kLargeAngle = sizeof(T) == 4 ? 1e5 : 1e9;

template <class T>
bool is_large_angle(T angle) {
  return std::fabs(angle) > static_cast<T>(kLargeAngle<T>);
}

/// sin(angle), or cos(angle), to the last place for any angle; NaN for infinities.
float sine_of_large_angle(float angle, bool cosine);
double sine_of_large_angle(double angle, bool cosine);

/// What machine code calls: `sines`, of a vector, are replaced where the angle is large. `angles_and_sines` has the
/// angles first; each has `bytes` bytes.
void replace_sines_of_floats(void* angles_and_sines, int bytes, int cosine);
void replace_sines_of_doubles(void* angles_and_sines, int bytes, int cosine);

}  // namespace mercer::ir
