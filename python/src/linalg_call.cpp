#include "linalg_call.h"

#include <fmt/format.h>

#include <utility>

namespace mercer::python {
namespace {

constexpr std::uintptr_t kFarApart = std::uintptr_t{1} << 48;  // addresses of outputs that are not there
constexpr double kLadder[] = {1, 10, 100};

nb::handle require_no_jax(nb::handle object, Place place) {
  if (is_jax(object))
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: is not offered for arrays of jax. Received one for {}.", place.verb, place.name));
  return object;
}

void swap_last_axes(Tensor& tensor) {
  const auto last = tensor.shape.size() - 1;
  std::swap(tensor.shape[last], tensor.shape[last - 1]);
  std::swap(tensor.strides[last], tensor.strides[last - 1]);
}

}  // namespace

LinalgCall::LinalgCall(const char* verb, const char* name, nb::handle a, bool overwrite, nb::handle workspace)
    : verb_(verb), a_(require_no_jax(a, {verb, name}), {verb, name}, overwrite ? Access::write : Access::read) {
  options_.verb = verb;
  a_.require_unwatched();
  require_type(a_);
  if (!workspace.is_none()) queue_.use_workspace(workspace, a_);
  if (a_.on_cuda()) options_.queue = queue_.open(a_);
  if (Measuring* measuring = Measuring::current()) options_.queue.rehearsal = &measuring->rehearsal;
  if (options_.queue.rehearsal == nullptr) queue_.wait_for(a_);
}

void LinalgCall::require_type(const Array& array) const {
  const Dtype dtype = array.tensor().dtype;
  if (dtype == Dtype::float32 || dtype == Dtype::float64) return;
  throw DtypeError(
      fmt::format("{}: {} must be float32 or float64. Received {}", verb_, array.place().name, name_of(dtype)));
}

void LinalgCall::read_jitter(nb::handle jitter) {
  if (jitter.is_none()) return;
  if (PySequence_Check(jitter.ptr()) && !is_array(jitter) && !PyUnicode_Check(jitter.ptr())) {
    for (const nb::handle amount : jitter) options_.jitter.push_back(to_number(amount, verb_, "jitter"));
    return;
  }
  const double first = to_number(jitter, verb_, "jitter");
  for (const double factor : kLadder) options_.jitter.push_back(factor * first);
}

const Tensor& LinalgCall::input(nb::handle object, const char* name, bool overwrite) {
  Array& array = held_.emplace_back(object, Place{verb_, name}, overwrite ? Access::write : Access::read);
  array.require_same_library(a_);
  array.require_same_device(a_);
  if (options_.queue.rehearsal == nullptr) queue_.wait_for(array);
  return array.tensor();
}

LinalgCall::Output LinalgCall::output(nb::handle out, const char* name, Dtype dtype,
                                      const std::vector<std::int64_t>& shape, Layout layout) {
  if (!out.is_none()) return {nb::borrow(out), &input(out, name, true)};
  std::vector<std::int64_t> extents = shape;
  const bool turned = layout == Layout::columns;
  if (turned) std::swap(extents[extents.size() - 1], extents[extents.size() - 2]);
  if (options_.queue.rehearsal != nullptr) {
    void* const address = reinterpret_cast<void*>(kFarApart * (views_.size() + 1));
    Tensor& view = views_.emplace_back(address, dtype, extents);
    view.device = a().device;
    if (turned) swap_last_axes(view);
    return {nb::none(), &view};
  }
  nb::object made = make_array(a_.library(), a_.object(), dtype, extents, {verb_, name});
  Tensor& view = views_.emplace_back(held_.emplace_back(made, Place{verb_, name}, Access::fresh).tensor());
  if (!turned) return {made, &view};
  swap_last_axes(view);
  return {nb::hasattr(made, "swapaxes") ? nb::object(made.attr("swapaxes")(-1, -2)) : nb::object(made.attr("mT")),
          &view};
}

LinalgCall::Output LinalgCall::in_place(nb::handle object, const Tensor& view, nb::handle out,
                                        const char* option) const {
  if (!out.is_none())
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: out must not be given with {}. Received both.", verb_, option));
  return {nb::borrow(object), &view};
}

}  // namespace mercer::python
