// The part of XLA's foreign function interface (version 0, the C ABI behind jax.ffi) that Mercer's handler reads.
// Structs carry their size, so that later versions may add fields at their ends; functions take one struct and give an
// error, nullptr where they succeed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mercer::python::xla {

inline constexpr int kMajorVersion = 0, kMinorVersion = 1;  // the oldest that has all that is declared here

struct Error;             // opaque
struct ExecutionContext;  // opaque

enum : int { kExtensionMetadata = 1 };
struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct ApiVersion {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

enum ErrorCode : int { kInvalidArgument = 3, kUnimplemented = 12, kInternal = 13 };
struct ErrorCreate {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct StreamGet {
  std::size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out
};

struct MemoryAllocate {
  std::size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  std::size_t size, alignment;
  void* data;  // out
};

struct MemoryFree {
  std::size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  std::size_t size;
  void* data;
};

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorCreate*);
  void (*error_message)(void*);
  void (*destroy_error)(void*);
  void* register_handler;
  Error* (*stream)(StreamGet*);
  void* register_type;
  void* context;
  void* set_state;
  void* get_state;
  Error* (*allocate)(MemoryAllocate*);
  Error* (*free)(MemoryFree*);
};

enum ElementType : int {
  kPred = 1,
  kS8 = 2,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
};

/// Contiguous, row-major.
struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  ElementType type;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

enum : int { kBuffer = 1 };                               // kinds of arguments and results
enum : int { kScalarAttribute = 3, kTextAttribute = 4 };  // kinds of attributes

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  ElementType type;
  void* value;
};

struct Arguments {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  void** values;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  Text** names;
  void** values;
};

enum : int { kExecuteStage = 3 };
struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  int stage;
  Arguments arguments, results;
  Attributes attributes;
};

/// XLA asks for it when a handler is registered.
struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

using Handler = Error*(CallFrame*);

}  // namespace mercer::python::xla
