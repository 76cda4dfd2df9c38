// Numbers of the host for a device, in the order of a stream.
#pragma once

#include <cstddef>

#include "backend/cuda/runtime/job.h"

namespace mercer::cuda {

/// Copies from memory of the host, which may change or go as soon as this returns: a copy of it in pinned memory waits
/// for the device. The host waits where more than 32 MiB are on their way. Throws in a graph capture, which would read
/// the pinned memory again at every replay.
void upload(const PairJob& place, void* to, const void* from, std::size_t bytes);

}  // namespace mercer::cuda
