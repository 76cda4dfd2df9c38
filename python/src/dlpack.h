// The part of the DLPack binary interface (version 1) that Mercer reads: how array libraries describe their memory.
#pragma once

#include <cstdint>

namespace mercer::python {

enum : std::int32_t { kDLCPU = 1, kDLCUDA = 2 };
enum : std::uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };
enum : std::uint64_t { kDLReadOnly = 1 };

struct DLDevice {
  std::int32_t type, id;
};

struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; nullptr: contiguous
  std::uint64_t byte_offset;
};

struct DLManagedTensor {  // a capsule named "dltensor"
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

struct DLManagedTensorVersioned {  // a capsule named "dltensor_versioned"
  struct {
    std::uint32_t major, minor;
  } version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};

/// The table of C functions behind the attribute __dlpack_c_exchange_api__ of an array type.
struct DLPackExchange {
  struct {
    std::uint32_t major, minor;
  } version;
  void* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of_object)(void* object, DLTensor* out);  // borrowed; may be nullptr
  void* current_stream;
};

}  // namespace mercer::python
