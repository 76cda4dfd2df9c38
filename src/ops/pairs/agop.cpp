// Outer products of gradients, added up without storing the gradients: those of some rows m at a time are points whose
// inner products are the result.
//
//   for each part of the rows:  g = kernel_gradient(part)                  [..., O, rows, K]
//                               slot = pairwise("sum(x*z)", g^T, g^T)      K points of O * rows features, half of them
//   out = sum of the slots, 16 at a time, so that few additions follow one another
#include <algorithm>
#include <vector>

#include "backend/cuda/runtime/workspace.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "core/system/mutex.h"
#include "kernels/cuda/common/arguments.h"
#include "ops/gpu/cuda_call.h"
#include "ops/pairs/agop_parts.h"
#include "ops/pairs/coefficients.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

constexpr std::int64_t kSlots = 16;            // whose sum is another slot

/// Entries first … first + count - 1 of an axis.
Tensor narrowed(Tensor t, std::size_t axis, std::int64_t first, std::int64_t count) {
  t.data = ops::element(t, first * t.strides[axis]);
  t.shape[axis] = count;
  return t;
}

class OuterProducts {
 public:
  OuterProducts(const PairCall& call, const Formula& f, const Tensor& x, const Tensor& z, const Tensor& coef,
                const Tensor& out, const Arguments& arguments, Context& context)
      : call_(call), f_(f), x_(x), z_(z), coef_(coef), out_(out), arguments_(arguments), context_(context),
        shape_(call.op(), &coef) {
    size_ = static_cast<std::int64_t>(size_of(call.type()));
    const std::int64_t m = call.m(), k = call.features();
    const std::int64_t outputs = std::max<std::int64_t>(1, shape_.outputs);
    const std::int64_t row = call.items() * outputs * k * size_;
    const plan::Costs& costs = context.state().costs_on(x.device, arguments.queue);
    const ops::AgopParts parts = ops::agop_parts(m, outputs, row, costs.part_bytes);
    parts_ = parts.count;
    rows_ = parts.rows;
    matrix_ = call.items() * k * k;
  }

  /// Bytes of the gradients of a part and of the slots.
  std::int64_t gradient_bytes() const {
    return call_.items() * shape_.outputs * std::min(rows_, call_.m()) * call_.features() * size_;
  }
  std::int64_t slot_bytes() const { return parts_ == 1 ? 0 : (kSlots + 1) * matrix_ * size_; }

  /// add(slots, to): so many slots, from the first on, are added up; to another slot, or to out where that is -1.
  template <class Add>
  void run(char* gradients, char* slots, const Queue& queue, const Add& add) const {
    if (parts_ == 1) return multiply(gradients, 0, out_, queue);
    std::int64_t carried = 0;
    for (std::int64_t part = 0; part < parts_;) {
      const std::int64_t count = std::min(kSlots, parts_ - part);
      for (std::int64_t s = 0; s < count; ++s, ++part)
        multiply(gradients, part, matrix(slots + s * matrix_ * size_), queue);
      // The sum of the groups before comes last: few additions follow one another.
      const std::int64_t next = std::min(kSlots, parts_ - part);
      add(count + carried, part < parts_ ? next : -1);
      carried = 1;
    }
  }

  /// The calls that run() makes, once each.
  void rehearse(char* gradients, char* slots, const Queue& queue) const {
    multiply(gradients, 0, parts_ == 1 ? out_ : matrix(slots), queue);
  }

  std::int64_t matrix_elements() const { return matrix_; }

 private:
  Tensor array(char* data, Shape shape) const {
    Tensor t(data, call_.type(), std::move(shape));
    t.device = call_.device();
    return t;
  }
  Tensor matrix(char* data) const {
    Shape shape = call_.batch();
    shape.insert(shape.end(), {call_.features(), call_.features()});
    return array(data, std::move(shape));
  }

  void multiply(char* gradients, std::int64_t part, const Tensor& out, const Queue& queue) const {
    const std::int64_t first = std::min(part * rows_, call_.m()), rows = std::min(rows_, call_.m() - first);
    const std::int64_t k = call_.features(), terms = shape_.outputs * rows;
    Shape shape = call_.batch();
    if (!shape_.single) shape.push_back(shape_.outputs);
    shape.insert(shape.end(), {rows, k});
    Arguments arguments = arguments_;
    arguments.queue = queue;
    arguments.verb = call_.op();
    arguments.i_offset += first;
    if (arguments.row) arguments.row = narrowed(*arguments.row, arguments.row->ndim() - 1, first, rows);
    kernel_gradient(f_, narrowed(x_, x_.ndim() - 2, first, rows), &z_, coef_, array(gradients, shape), arguments,
                    context_);
    // The features as points: [..., K, O * rows].
    Shape points = call_.batch(), strides;
    points.insert(points.end(), {k, terms});
    Tensor transposed = array(gradients, points);
    std::int64_t step = terms * k;
    transposed.strides.assign(points.size(), 0);
    for (std::size_t axis = call_.batch().size(); axis-- > 0; step *= points[axis]) transposed.strides[axis] = step;
    transposed.strides[points.size() - 2] = 1;
    transposed.strides[points.size() - 1] = k;
    static constinit Lazy<Formula> kept;
    const Formula& product = kept.get([] { return Formula("sum(x*z)"); });
    Arguments plain;
    plain.queue = queue;
    plain.verb = call_.op();
    pairwise(product, transposed, nullptr, out, plain, context_);
  }

  const PairCall& call_;
  const Formula& f_;
  const Tensor &x_, &z_, &coef_, &out_;
  const Arguments& arguments_;
  Context& context_;
  ops::Coefficients shape_;
  std::int64_t size_ = 4, parts_ = 1, rows_ = 1, matrix_ = 0;
};

/// out[b, k, l] = the sum of so many [b, k, l] that lie one after the other.
template <class Real>
void add_up(const char* slots, std::int64_t count, std::int64_t elements, char* to) {
  const Real* from = reinterpret_cast<const Real*>(slots);
  Real* sums = reinterpret_cast<Real*>(to);
  for (std::int64_t at = 0; at < elements; ++at) {
    Real sum = from[at];
    for (std::int64_t s = 1; s < count; ++s) sum += from[s * elements + at];
    sums[at] = sum;
  }
}

void run_on_cpu(const OuterProducts& products, const PairCall& call, const Tensor& out, const Arguments& arguments) {
  const std::int64_t elements = products.matrix_elements(), size = static_cast<std::int64_t>(size_of(call.type()));
  const AlignedBuffer gradients(products.gradient_bytes()), sums(products.slot_bytes());
  char* const slots = sums.as<char>();
  products.run(gradients.as<char>(), slots, arguments.queue, [&](std::int64_t count, std::int64_t next) {
    char* to = slots + (next < 0 ? 0 : next * elements * size);
    if (call.type() == Dtype::float64)
      add_up<double>(slots, count, elements, to);
    else
      add_up<float>(slots, count, elements, to);
    if (next >= 0) return;
    const Shape strides = ops::batch_strides(out, 2, call.batch());
    const std::int64_t k = call.features();
    for (std::int64_t item = 0; item < call.items(); ++item)
      for (std::int64_t row = 0; row < k; ++row)
        for (std::int64_t col = 0; col < k; ++col) {
          const std::int64_t at = call.offset(item, strides) + row * out.strides[out.ndim() - 2] +
                                  col * out.strides.back();
          std::copy_n(slots + ((item * k + row) * k + col) * size, size, ops::element(out, at));
        }
  });
}

void run_on_cuda(const OuterProducts& products, const PairCall& call, const Tensor& out, const Arguments& arguments,
                 Context& context) {
  const cuda::PairJob job = call.job(context);
  const cuda::JobScope scope(job);
  cuda::Workspace workspace;
  const std::int64_t gradients = workspace.add(products.gradient_bytes()), slots = workspace.add(products.slot_bytes());
  const cuda::Rehearsal* outer = job.rehearsal();
  // Addresses where nothing is, far from each other.
  char* const nowhere = reinterpret_cast<char*>(std::uintptr_t{1} << 56);
  char* const elsewhere = reinterpret_cast<char*>(std::uintptr_t{1} << 57);
  if (outer != nullptr && outer->purpose != cuda::Rehearsal::Purpose::workspace) {
    cuda::sum_splits(job);
    return products.rehearse(nowhere, elsewhere, arguments.queue);
  }
  // The calls within take their scratch memory from after ours.
  cuda::Rehearsal inner{cuda::Rehearsal::Purpose::workspace, outer ? outer->device : nullptr};
  Queue asked = arguments.queue;
  asked.rehearsal = &inner;
  products.rehearse(nowhere, elsewhere, asked);
  if (cuda::Rehearsal* const rehearsal = job.rehearsal())
    rehearsal->ways.insert(rehearsal->ways.end(), inner.ways.begin(), inner.ways.end());
  const std::int64_t shared = workspace.add(inner.bytes);
  if (!workspace.take(job)) return;
  const cuda::Kernel sum = cuda::sum_splits(job);
  Queue queue = arguments.queue;
  queue.allocate = [&](std::int64_t) { return workspace.at<>(shared); };
  products.run(workspace.at<char>(gradients), workspace.at<char>(slots), queue,
               [&](std::int64_t count, std::int64_t next) {
                 const std::int64_t k = call.features(), elements = products.matrix_elements();
                 const std::int64_t size = static_cast<std::int64_t>(size_of(call.type()));
                 const auto add = [&](const char* from, char* to, std::int64_t outputs, std::int64_t output,
                                      std::int64_t row, std::int64_t column) {
                   SumArguments a{from, to, k, k, elements, output, row, column, static_cast<int>(outputs),
                                  static_cast<int>(count), 0};
                   cuda::launch(sum, job, {ceil_div(outputs * k * k, 256)}, 256, 0, a);
                 };
                 const char* from = workspace.at<char>(slots);
                 if (next >= 0)
                   return add(from, workspace.at<char>(slots) + next * elements * size, call.items(), k * k, k, 1);
                 const Shape strides = ops::batch_strides(out, 2, call.batch());
                 for (std::int64_t item = 0; item < call.items(); ++item)
                   add(from + item * k * k * size, ops::element(out, call.offset(item, strides)), 1, 0,
                       out.strides[out.ndim() - 2], out.strides.back());
               });
}

}  // namespace

void kernel_agop(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                 const Arguments& arguments, Context& context) {
  const char* op = "kernel_agop";
  const ops::Coefficients shape(op, &coef);
  const PairCall call(op, f, x, z, arguments, false, {ops::leading(coef, shape.axes)});
  shape.check(call, coef);
  ops::check_output_type(op, out, call.type());
  Shape expected = call.batch();
  expected.insert(expected.end(), {call.features(), call.features()});
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.push_back(&coef);
  ops::check_output(op, out, expected, inputs);
  if (call.ends_checked(out)) return;
  const OuterProducts products(call, f, x, z != nullptr ? *z : x, coef, out, arguments, context);
  if (call.on_cuda())
    run_on_cuda(products, call, out, arguments, context);
  else
    run_on_cpu(products, call, out, arguments);
}

}  // namespace mercer
