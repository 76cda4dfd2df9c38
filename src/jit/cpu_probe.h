// How long vector instructions take on this processor, alone and in turns, measured.
#pragma once

#include <functional>

#include "mercer/device.h"
#include "plan/cpu/fit_ports.h"

namespace mercer::jit {

/// Told before each sweep over all probes; false ends the measurement, which then throws Cancelled.
using Told = std::function<bool(double done, double total)>;

/// The shortest of several sweeps, in cycles at this clock. Takes about a second. Throws compile where code may not
/// run.
plan::PortTimes measure_ports(Target target, double gigahertz, const Told& told);
/// Cycles from a multiply-add to the next of its chain; loads of a vector in a cycle.
double measure_latency(Target target, double gigahertz);
double measure_loads(Target target, double gigahertz);

}  // namespace mercer::jit
