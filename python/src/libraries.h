// The libraries that arrays come from: how each reads, makes and orders its arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlpack.h"
#include "mercer/tensor.h"
#include "numpy_fields.h"

namespace mercer::python {

/// An array type's home: how its arrays are read and new ones are made. One for each array type, kept for good.
struct Library {
  enum class Kind { numpy, torch, cupy, jax, outline, other };  // outline: described, not there
  Kind kind = Kind::other;
  std::string name;                          // "numpy", "torch", …
  nb::object empty;                          // numpy.empty, torch.empty, …; invalid where there is none
  nb::object empty_like, is_negated;         // of PyTorch: torch.empty_like, torch.Tensor.is_neg
  nb::object namespace_;                     // what holds the dtypes
  nb::object dtypes[kDtypeCount];            // the library's own, by Dtype; found at the first use
  nb::object runtime;                        // of CuPy: cupy.cuda.runtime
  nb::handle forward_mode;                   // of PyTorch: the dict of torch.autograd.forward_ad
  std::vector<nb::object> watchers;          // of PyTorch: functions that count what sees its calls
  nb::object stream_of;                      // of PyTorch and CuPy: what gives the current stream
  const DLPackExchange* exchange = nullptr;  // where the type offers it
  bool has_dlpack = false;                   // else it has the CUDA array interface only
  bool has_fields = false;  // numpy.ndarray itself, whose fields are where NumpyArray has them
  NumpyEmpty numpy_empty = nullptr;          // of that type: what makes its arrays in half the time of numpy.empty
  bool is_masked = false;                    // numpy.ma
  bool is_subclass = false;                  // of torch.Tensor, other than torch.nn.Parameter

  const nb::object& dtype(Dtype dtype);
};

/// The type that name_of calls so.
std::optional<Dtype> dtype_of_name(std::string_view name);

/// Which argument of which verb an array is, for messages.
struct Place {
  const char* verb;
  const char* name;
  bool is_whole = false;  // products of whole numbers, int64 among them
};

/// str(object), or repr(object), of any object, for messages: it need not be text that UTF-8 has, nor be there.
std::string text_of(nb::handle object, bool as_code = false);
/// "torch.Tensor".
std::string type_text(nb::handle object);

/// Throws with the way to convert when `object` is not an array.
Library& library_of(nb::handle object, Place place);
bool is_array(nb::handle object);
/// An array of JAX, or what stands for one while JAX traces a function.
bool is_jax(nb::handle object);
bool is_torch(nb::handle object);
bool is_numpy(nb::handle object);

/// Makes a device CuPy's current one for a while.
class CupyDevice {
 public:
  CupyDevice(const Library& library, int index);
  ~CupyDevice();
  CupyDevice(const CupyDevice&) = delete;
  CupyDevice& operator=(const CupyDevice&) = delete;

 private:
  const Library& library_;
  nb::object before_;  // invalid where nothing had to change
};

/// A new array of the library of `like`, on its device, uninitialised. `view`: what `like` is, where it is at hand;
/// PyTorch makes arrays of its dtype, and of its shape too, sooner than others.
nb::object make_array(Library& library, nb::handle like, Dtype dtype, const std::vector<std::int64_t>& shape,
                      Place place, const Tensor* view = nullptr);

/// The device as DLPack names it.
DLDevice to_dlpack(Device device);
DLDataType to_dlpack(Dtype dtype);

}  // namespace mercer::python
