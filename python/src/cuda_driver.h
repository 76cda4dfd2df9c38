// The few calls of the CUDA driver that arrays without a library need: where a pointer lies, and order between streams.
#pragma once

#include "mercer/tensor.h"

namespace mercer::python {

/// The CUDA device of a pointer, managed memory included; the current one for a null pointer. Throws device without a
/// driver.
int device_of_pointer(const void* pointer);

/// Work put into `later` from now on starts after what is in `earlier` so far. Nobody waits on the host.
void order_streams(int device, void* earlier, void* later);

}  // namespace mercer::python
