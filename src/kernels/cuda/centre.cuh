// The median of a sample, two values a lane; a mean would follow a single far one.
#define CENTRE_SAMPLES 64
// Of the lane's samples the median's place; -1 in all lanes but the one that has it.
template <class T>
MERCER_INLINE int median_place(const T (&samples)[2]) {
  const int lane = threadIdx.x % 32;
  int below[2] = {0, 0};
#pragma unroll 4
  for (int other = 0; other < CENTRE_SAMPLES; ++other) {
    const auto value = ordered(__shfl_sync(0xffffffffu, other < 32 ? samples[0] : samples[1], other % 32));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const auto own = ordered(samples[s]);
      below[s] += value < own || (value == own && other < lane + 32 * s);
    }
  }
  return below[0] == CENTRE_SAMPLES / 2 - 1 ? 0 : below[1] == CENTRE_SAMPLES / 2 - 1 ? 1 : -1;
}
template <class T>
MERCER_INLINE void write_sample(T* to, const T (&samples)[2], int place) {
  const T sample = place > 0 ? samples[1] : samples[0];
  if (place >= 0) *to = fabs(sample) < INFINITY ? sample : 0;
}
template <class T>
MERCER_INLINE void write_median(T* to, const T (&samples)[2]) {
  write_sample(to, samples, median_place(samples));
}
