// The part of the DLPack binary interface (version 1) that Mercer reads: how array libraries describe their memory.
#pragma once

#include <cstdint>

namespace mercer::python {

enum : std::int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
enum : std::uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };
enum : std::uint64_t { kDLReadOnly = 1, kDLCopied = 2 };

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

/// The table of C functions behind the attribute __dlpack_c_exchange_api__ of an array type. Functions give 0 where
/// they succeed.
struct DLPackExchange {
  struct {
    std::uint32_t major, minor;
  } version;
  void* previous;
  /// A new array of the prototype's shape, dtype and device. Needs no GIL.
  int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, DLManagedTensorVersioned** out);
  int (*managed_to_object)(DLManagedTensorVersioned* array, void** out_object);  // takes the array
  int (*view_of_object)(void* object, DLTensor* out);                            // borrowed; may be nullptr
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace mercer::python
