// Centres of the features from samples of the points, and how far off the samples lie: 60 of a feature, in four groups,
// half of them of either side, or all of one. A group gives the median of medians of three; one of the two in the
// middle of those is the centre: any is right, but a mean would follow a single far point, lie between clusters, and of
// integers be none.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define SAMPLE_GROUPS 4
#define GROUP_TRIPLES 5
#define GROUP_SAMPLES (3 * GROUP_TRIPLES)

MERCER_INLINE float median_of_three(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

MERCER_INLINE float median_of_five(const float (&of)[GROUP_TRIPLES]) {
  const float least[2] = {fminf(of[0], of[1]), fminf(of[2], of[3])};
  const float most[2] = {fmaxf(of[0], of[1]), fmaxf(of[2], of[3])};
  return median_of_three(fmaxf(least[0], least[1]), fminf(most[0], most[1]), of[4]);
}
// The one of the second and the third of four that is nearer to their mean; 0 where that is not finite.
MERCER_INLINE float centre_of_groups(float a, float b, float c, float d) {
  const float two[2] = {fminf(fmaxf(a, b), fmaxf(c, d)), fmaxf(fminf(a, b), fminf(c, d))};
  const float mean = 0.25f * a + 0.25f * b + (0.25f * c + 0.25f * d);
  const float centre = fabsf(two[1] - mean) < fabsf(two[0] - mean) ? two[1] : two[0];
  return SQUARES && fabsf(centre) < INFINITY ? centre : 0.0f;
}

// The points of a group, spread over its side; of few points some are the last one.
struct SampledPoints {
  int side;
  u32 first, step, last;
  MERCER_METHOD SampledPoints(const SplitArguments& a, u32 group) {
    constexpr u32 kSamples = GROUP_SAMPLES * SAMPLE_GROUPS;
    const bool both = a.sides == 2;
    const u32 groups = both ? SAMPLE_GROUPS / 2 : SAMPLE_GROUPS;
    side = (int)(group / groups);
    last = (u32)a.side[side].count - 1;
    step = max(both ? (last + 1) / (kSamples / 2) : (last + 1) / kSamples, 1u);
    first = group % groups * GROUP_SAMPLES * step;
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
    float medians[GROUP_TRIPLES], of_groups[SAMPLE_GROUPS];
#pragma unroll
    for (int i = 0; i < GROUP_TRIPLES; ++i)
      medians[i] = __shfl_sync(0xffffffffu, median, lane % SAMPLE_GROUPS * GROUP_TRIPLES + i);
    const float of_group = median_of_five(medians);
#pragma unroll
    for (int g = 0; g < SAMPLE_GROUPS; ++g) of_groups[g] = __shfl_sync(0xffffffffu, of_group, g);
    centre = centre_of_groups(of_groups[0], of_groups[1], of_groups[2], of_groups[3]);
  }
  MERCER_METHOD float farthest() const {
    float most = 0;
#pragma unroll
    for (const float value : values) most = fmaxf(most, distance_from(centre, value));
    return float_of(__reduce_max_sync(0xffffffffu, bits_of(most)));
  }
};
