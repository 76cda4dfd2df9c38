// The error of a GPU whose memory is full, for callers that can go on with less.
#pragma once

#include "mercer/error.h"

namespace mercer {

struct DeviceMemoryError : Error {
  using Error::Error;
};

}  // namespace mercer
