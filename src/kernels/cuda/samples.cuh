// Centres of the features from samples of the points, and how far off the samples lie: 60 of a feature, in four groups,
// half of them of either side, or all of one. A centre is the mean of the middle two of the groups' middles, for a mean
// of all would follow a single far point; any centre is right.
#define SAMPLE_GROUPS 4
#define GROUP_TRIPLES 5

MERCER_INLINE float median_of_three(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

// Of a group, the mean of its medians of three less the least and the largest.
MERCER_INLINE float middle_of_group(const float (&medians)[GROUP_TRIPLES]) {
  const float least[2] = {fminf(medians[0], medians[1]), fminf(medians[2], medians[3])};
  const float most[2] = {fmaxf(medians[0], medians[1]), fmaxf(medians[2], medians[3])};
  const float last = fminf(fmaxf(most[0], most[1]), fmaxf(fminf(least[0], least[1]), medians[4]));
  return (fmaxf(least[0], least[1]) + fminf(most[0], most[1]) + last) * (1.0f / 3);
}
// 0 where that is not finite.
MERCER_INLINE float centre_of_groups(float a, float b, float c, float d) {
  const float mean = 0.5f * fminf(fmaxf(a, b), fmaxf(c, d)) + 0.5f * fmaxf(fminf(a, b), fminf(c, d));
  return SQUARES && fabsf(mean) < INFINITY ? mean : 0.0f;
}

// The points of a group, spread over its side; of few points some are the last one.
struct SampledPoints {
  int side;
  u32 first, step, last;
  MERCER_METHOD SampledPoints(const SplitArguments& a, u32 group) {
    constexpr u32 kSamples = 3 * GROUP_TRIPLES * SAMPLE_GROUPS;
    const bool both = a.sides == 2;
    const u32 groups = both ? SAMPLE_GROUPS / 2 : SAMPLE_GROUPS;
    side = (int)(group / groups);
    last = (u32)a.side[side].count - 1;
    step = max(both ? (last + 1) / (kSamples / 2) : (last + 1) / kSamples, 1u);
    first = group % groups * (3 * GROUP_TRIPLES) * step;
  }
  MERCER_METHOD u32 at(u32 i) const { return min(first + i * step, last); }
};

// What is not finite has no part in it.
MERCER_INLINE float distance_from(float centre, float value) {
  const float magnitude = fabsf(value - centre);
  return magnitude < INFINITY ? magnitude : 0.0f;
}

// A feature of a warp: three samples a lane, value(side, point). In all lanes.
struct SampledFeature {
  float values[3], centre;
  template <class Value>
  MERCER_METHOD void take(const SplitArguments& a, const Value& value) {
    const int lane = threadIdx.x % 32, own = lane < SAMPLE_GROUPS * GROUP_TRIPLES ? lane : 0;
    const SampledPoints points(a, own / GROUP_TRIPLES);
#pragma unroll
    for (int i = 0; i < 3; ++i)
      values[i] = value(a.side[points.side], points.at(own % GROUP_TRIPLES * 3 + i));
    const float median = median_of_three(values[0], values[1], values[2]);
    float medians[GROUP_TRIPLES], middles[SAMPLE_GROUPS];
#pragma unroll
    for (int i = 0; i < GROUP_TRIPLES; ++i)
      medians[i] = __shfl_sync(0xffffffffu, median, lane % SAMPLE_GROUPS * GROUP_TRIPLES + i);
    const float middle = middle_of_group(medians);
#pragma unroll
    for (int g = 0; g < SAMPLE_GROUPS; ++g) middles[g] = __shfl_sync(0xffffffffu, middle, g);
    centre = centre_of_groups(middles[0], middles[1], middles[2], middles[3]);
  }
  MERCER_METHOD float farthest() const {
    float most = 0;
#pragma unroll
    for (const float value : values) most = fmaxf(most, distance_from(centre, value));
    return float_of(__reduce_max_sync(0xffffffffu, bits_of(most)));
  }
};
