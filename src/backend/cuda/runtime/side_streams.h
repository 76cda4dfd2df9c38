// Streams in addition to the caller's, for independent parts of one call:
//
//   caller  ──┬───────── part 0 ─────────┬──
//             ├── wait ─ part 1 ─ record ┤
//             └── wait ─ part 2 ─ record ┘
#pragma once

#include <vector>

#include "core/devices/cuda_driver.h"

namespace mercer::cuda {

/// Such a stream of the device, made at the first use and kept; many calls may share it.
CuStream side_stream(int device, int index, const char* op);

/// What is put into the side streams from now on starts after what is in the caller's stream; after join(), what is put
/// into that one waits for it. The destructor joins, too: memory must not go back before.
class Fork {
 public:
  Fork() = default;
  ~Fork();
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;

  void start(CuStream caller, std::vector<CuStream> sides, const char* op);
  void join();

 private:
  CuStream caller_ = nullptr;
  std::vector<CuStream> sides_;  // not joined yet
  const char* op_ = "";
};

}  // namespace mercer::cuda
