#include "ir/expr/large_angle.h"

namespace mercer::ir {
namespace {

template <class T>
void replace_sines(void* angles_and_sines, int bytes, int cosine) {
  const T* angles = static_cast<const T*>(angles_and_sines);
  const int lanes = bytes / static_cast<int>(sizeof(T));
  T* sines = static_cast<T*>(angles_and_sines) + lanes;
  for (int lane = 0; lane < lanes; ++lane)
    if (is_large_angle(angles[lane])) sines[lane] = sine_of_large_angle(angles[lane], cosine != 0);
}

}  // namespace

double sine_of_large_angle(double angle, bool cosine) { return cosine ? std::cos(angle) : std::sin(angle); }
float sine_of_large_angle(float angle, bool cosine) {
  return static_cast<float>(sine_of_large_angle(static_cast<double>(angle), cosine));
}

void replace_sines_of_floats(void* angles_and_sines, int bytes, int cosine) {
  replace_sines<float>(angles_and_sines, bytes, cosine);
}
void replace_sines_of_doubles(void* angles_and_sines, int bytes, int cosine) {
  replace_sines<double>(angles_and_sines, bytes, cosine);
}

}  // namespace mercer::ir
