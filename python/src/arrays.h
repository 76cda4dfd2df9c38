// Arrays of any library as mercer::Tensor, without copies and without waiting for a device.
//
// The ways in, the fastest that an array offers: the buffer protocol (NumPy), the C exchange table of DLPack (PyTorch),
// attributes (CuPy), __cuda_array_interface__, and __dlpack__ (anything else).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.h"
#include "libraries.h"
#include "core/dtype_error.h"
#include "mercer/error.h"
#include "mercer/tensor.h"

namespace mercer::python {

/// A tensor that PyTorch follows: its gradients are wanted, it stands for others (vmap, fake tensors), or a tracer or a
/// mode of PyTorch is to see the call. The verbs hand the call over to their registered operators; everywhere else the
/// message is the error.
struct FollowedTensor : Error {
  using Error::Error;
};

/// While it lives, calls of this thread do not ask whether PyTorch follows their tensors: the operators run in it.
class Unfollowed {
 public:
  Unfollowed() : before_(current_) { current_ = true; }
  ~Unfollowed() { current_ = before_; }
  Unfollowed(const Unfollowed&) = delete;
  Unfollowed& operator=(const Unfollowed&) = delete;
  static bool current() { return current_; }

 private:
  static thread_local bool current_;
  bool before_;
};

/// Whether PyTorch records what is done with this very tensor. Asked before a call is made: the call itself says so by
/// an exception, which takes as long as all of a call on tiny arrays. Throws where `object` is no array.
bool is_recorded(nb::handle object, Place place);

/// `parameter`: read as the values of a parameter; `fresh`: to be written, and made by Mercer just now.
enum class Access { read, parameter, write, fresh };

/// A view of one array for the length of a call. Made and destroyed with the GIL held.
class Array {
 public:
  /// Throws when `object` is no array, lies on a device that is neither the CPU nor CUDA, tracks gradients, or is
  /// read-only and to be written.
  Array(nb::handle object, Place place, Access access = Access::read);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const Tensor& tensor() const { return tensor_; }
  /// For a list of tensors; tensor() is empty from then on.
  Tensor release_tensor() { return std::move(tensor_); }
  Library& library() const { return *library_; }
  nb::handle object() const { return object_; }
  Place place() const { return place_; }
  bool on_cuda() const { return tensor_.device.kind == DeviceKind::cuda; }
  /// The stream in which an array of the CUDA array interface is in use, where it names one.
  std::optional<std::uintptr_t> producer_stream() const { return producer_stream_; }
  /// For the first array of a call: throws where a tracer or a mode of PyTorch is to see what is called.
  void require_unwatched() const;
  /// Throws unless the element type is one that points may have.
  void require_points() const;
  /// Throws unless both come from one library.
  void require_same_library(const Array& first) const;
  /// Throws unless both lie on one device.
  void require_same_device(const Array& first) const;

 private:
  void check_followed() const;
  void check_sign() const;
  Device device_of(DLDevice device) const;
  bool materialize();
  void take_format(const char* format, Py_ssize_t item_size);
  void take_strides(std::span<const std::int64_t> bytes);
  void view_buffer();
  bool view_fields();
  bool view_bits();
  void view_exchange();
  void view_cupy();
  void view_interface();
  void view_capsule();
  void view_outline();
  void take_capsule(nb::handle said);
  void take(const DLTensor& view);
  template <class Number>
  Number whole(nb::handle value, const char* protocol, const char* what) const;
  std::vector<std::int64_t> whole_numbers(nb::handle values, const char* protocol, const char* what) const;
  void take_rows();
  void check_extent(const char* protocol, const std::vector<std::int64_t>* strides, std::int64_t step) const;
  std::string as_float32() const;
  [[noreturn]] void fail_protocol(const char* protocol, const std::string& rule, nb::handle received) const;
  [[noreturn]] void fail_unaligned() const;
  [[noreturn]] void fail_of_mask() const;
  [[noreturn]] void fail_followed(const std::string& rule_and_received) const;
  [[noreturn]] void fail(ErrorKind kind, const std::string& rule_and_received) const;
  [[noreturn]] void fail_element(bool is_whole) const;
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
  Access access_;
  Library* library_;
  Tensor tensor_;
  Buffer buffer_;
  nb::object capsule_;  // or the interface's dict, which may own what it points to
  std::optional<std::uintptr_t> producer_stream_;
};

}  // namespace mercer::python
