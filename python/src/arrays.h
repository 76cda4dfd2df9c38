// Arrays of any library as mercer::Tensor, and new arrays made by the library of the caller.
//
// Three ways in, the fastest that an array offers: the buffer protocol (NumPy), the C exchange table of DLPack
// (PyTorch), and __dlpack__ (anything else on the CPU).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <string>
#include <vector>

#include "dlpack.h"
#include "mercer/error.h"
#include "mercer/tensor.h"

namespace mercer::python {

namespace nb = nanobind;

/// An array type's home: how its arrays are read and new ones are made. One for each array type, kept for good.
struct Library {
  enum class Kind { numpy, torch, other };
  Kind kind = Kind::other;
  std::string name;                          // "numpy", "torch", …
  nb::object empty;                          // numpy.empty, torch.empty, …
  nb::object namespace_;                     // what holds the dtypes
  const DLPackExchange* exchange = nullptr;  // where the type offers it
};

/// Which argument of which verb an array is, for messages.
struct Place {
  const char* verb;
  const char* name;
};

/// A dtype that a verb does not take; Python sees mercer.DtypeError, a ValueError and a TypeError.
struct DtypeFault : std::exception {
  explicit DtypeFault(std::string message_in) : message(std::move(message_in)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

enum class Access { read, write };

/// A view of one array for the length of a call. Made and destroyed with the GIL held.
class Array {
 public:
  /// Throws when `object` is no array, lies on another device, tracks gradients, or is read-only and to be written.
  Array(nb::handle object, Place place, Access access = Access::read);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const Tensor& tensor() const { return tensor_; }
  const Library& library() const { return *library_; }
  nb::handle object() const { return object_; }
  /// Throws unless the element type is one that points may have.
  void require_points() const;
  /// Throws unless both come from one library.
  void require_same_library(const Array& first) const;

 private:
  void check_torch() const;
  void check_device(DLDevice device) const;
  void view_buffer(Access access);
  void view_exchange();
  void view_capsule(Access access);
  void take(const DLTensor& view);
  std::string as_float32() const;
  [[noreturn]] void fail(ErrorKind kind, const std::string& rule_and_received) const;
  [[noreturn]] void fail_dtype(const std::string& rule, const std::string& advice = "") const;

  struct Buffer {
    Py_buffer view{};
    bool held = false;
    ~Buffer() {
      if (held) PyBuffer_Release(&view);
    }
  };

  nb::object object_;
  Place place_;
  const Library* library_;
  Tensor tensor_;
  Buffer buffer_;
  nb::object capsule_;
};

/// Throws with the way to convert when `object` is not an array.
const Library& library_of(nb::handle object, Place place);
bool is_array(nb::handle object);

/// A new array of the library of `like`, uninitialised.
nb::object make_array(const Library& library, nb::handle like, Dtype dtype, const std::vector<std::int64_t>& shape);

}  // namespace mercer::python
