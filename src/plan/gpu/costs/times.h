// The least time of what a way would run, by the programs of its plan (plan/gpu/floor.h).
#pragma once

#include "plan/gpu/floor.h"
#include "plan/gpu/ways.h"

namespace mercer::plan {

struct FloorOf {
  double items = 1;       // outputs of one accumulation
  bool quantised = true;  // the data have the property that the way looks for
  int products = 3;       // of 16-bit pieces: 1 where values have no low ones
};

/// Values of all pairs, the epilogue `items` times. Planes are written and read by choice: no part of a floor.
GpuTimes values_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu);

/// The whole call.
GpuTimes way_times(const Request& request, const Offer& offer, const FloorOf& of, const GpuInfo& gpu,
                   Planner& planner);

}  // namespace mercer::plan
