// What every operation on pairs shares: checks of the arguments, the batch, the parameters of each batch item.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/runtime/job.h"
#include "ops/call/prepared.h"

namespace mercer::ops {

using Shape = std::vector<std::int64_t>;

/// "(3, 4)", made where it is printed.
struct ShapeText {
  const Shape& shape;
  std::string to_text() const;
};
inline ShapeText text_of(const Shape& shape) { return {shape}; }
/// NumPy's rule, right-aligned. Throws with both shapes.
Shape broadcast(const char* op, const Shape& a, const Shape& b);

/// The axes of a tensor but for the last `trailing` ones.
Shape leading(const Tensor& tensor, int trailing);

/// Tensors are plain structs: a caller may have filled them by hand.
void check_layout(const char* op, const char* name, const Tensor& tensor);
/// Whether two arrays share memory. Columns of one wider array do not.
bool overlap(const Tensor& a, const Tensor& b);
/// A stride of 0 over several elements, say.
bool overlaps_itself(const Tensor& t);
bool same_view(const Tensor& a, const Tensor& b);

/// An element type of points.
void check_input(const char* op, const char* name, const Tensor& tensor, int least_axes);
/// An input other than x and z that is converted to the computing type, but neither widened to it nor narrowed.
void check_computing_type(const char* op, const char* name, const Tensor& tensor, Dtype type);
/// w, row or col: any such type, but for whole numbers that the computing type may not have.
void check_side(const char* op, const char* name, const Tensor& tensor, Dtype type);
/// An output that is exactly of this type.
void check_output_type(const char* op, const Tensor& out, Dtype type);
/// Arrays of one call lie on one device. Parameters may stay on the CPU.
void check_device(const char* op, const char* name, const Tensor& tensor, Device device);
/// Refuses an output on another device, one that overlaps itself (a stride of 0 over several elements) or an input.
void check_output(const char* op, const Tensor& out, const Shape& expected, const std::vector<const Tensor*>& inputs);

/// The element so many elements after the first.
char* element(const Tensor& tensor, std::int64_t elements);
/// Strides of a tensor's leading axes along the axes of the batch; 0 where it is broadcast.
Shape batch_strides(const Tensor& tensor, int trailing, const Shape& batch);

/// A call after its checks.
class PairCall {
 public:
  /// `swap`: run the formula with its sides swapped (x and z exchanged as well). `extra` are shapes of other batched
  /// arrays (leading axes). What it is given must outlive it.
  PairCall(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Arguments& arguments, bool swap,
           const std::vector<Shape>& extra = {});

  const char* op() const { return op_; }
  const Shape& batch() const { return batch_; }
  std::int64_t items() const { return items_; }
  std::int64_t m() const { return x_.shape[x_.ndim() - 2]; }
  std::int64_t n() const { return z_.shape[z_.ndim() - 2]; }
  std::int64_t features() const { return x_.shape.back(); }
  Device device() const { return x_.device; }
  Dtype dtype() const { return x_.dtype; }
  Dtype type() const { return compute_type(x_.dtype); }
  /// The formula that runs: exponents bound, sides swapped when asked for.
  const Formula::Prepared& formula() const { return *running_; }
  /// Points on the broadcast side of the running formula.
  std::int64_t rows() const { return swap_ ? n() : m(); }
  /// The other side is broadcast from now on.
  void swap_sides();
  /// Whether items of the batch differ in their points alone.
  bool items_are_alike() const;
  /// Strides of the points of the running formula's rows or columns along the axes of the batch.
  const Shape& item_strides(bool of_rows) const { return of_rows != swap_ ? x_strides_ : z_strides_; }
  /// Whether the symmetric half may be computed once.
  bool symmetric() const { return same_points_ && formula().symmetric; }
  /// Every array that the call reads.
  std::vector<const Tensor*> inputs() const;

  /// The job on arrays of a CUDA device: all batch items at once, in the order that the running formula wants.
  cuda::PairJob job(Context& context) const;
  bool on_cuda() const { return x_.device.kind == DeviceKind::cuda; }
  /// Nothing is left to do once the arguments are checked.
  bool ends_checked(const Tensor& out) const {
    return out.count() == 0 || (!on_cuda() && arguments_.queue.rehearsal != nullptr);
  }
  /// Points and weights of one batch item, in the order that the running formula wants.
  cpu::PairItem item(std::int64_t index) const;
  /// Values of these parameter leaves for one batch item.
  std::vector<double> values(std::int64_t index, const std::vector<Expr>& leaves) const;
  /// The value of a parameter for one batch item.
  double number(std::int64_t index, const std::string& name) const;
  /// Offset (in elements) of a batch item in an array with these batch strides.
  std::int64_t offset(std::int64_t index, const Shape& strides) const;

 private:
  struct ParamSource {
    Expr leaf;
    double number = 0;
    const Tensor* tensor = nullptr;  // null: `number` is the value
  };

  void check_points();
  /// Whether a formula needs an array; whether it names it, which simplification may have made needless.
  struct Reading {
    bool needs, names;
  };
  void read_weights(Reading reading);
  void check_indices(const ir::Uses& uses) const;
  void resolve_params(const Formula::Prepared& prepared);
  void check_values(const char* name, const std::optional<Tensor>& values, Reading reading, std::int64_t count);
  ParamSource source_of(const Expr& leaf) const;
  void bind_exponents(const Formula::Prepared& prepared);
  cpu::Points points(bool of_x, std::int64_t index) const;
  cuda::JobSide job_side(bool of_x) const;

  const char* op_;
  const Tensor &x_, &z_;
  const Arguments& arguments_;
  bool swap_, same_points_ = false;
  Shape batch_, x_strides_, z_strides_, row_strides_, col_strides_;
  std::int64_t items_ = 1;
  std::shared_ptr<const Formula::Prepared> bound_;  // its exponents bound
  const Formula::Prepared* running_ = nullptr;      // and its sides swapped
  std::vector<ParamSource> params_;
  std::vector<double> weights_;
};

/// What the planner is asked for this call; the outputs are still to be filled in.
plan::PairProblem pair_problem(const PairCall& call, Context& context);
/// A key for caches: the text says what is computed, the problem (but for its outputs) how.
std::string key_of(std::string_view text, const plan::PairProblem& problem);
/// The compiled program of the call's formula.
std::shared_ptr<const cpu::PairProgram> pair_program(const PairCall& call, Context& context);

/// Runs body(group) for independent groups: across threads when there are many, else each with all threads inside.
void for_each_group(std::int64_t groups, Context& context, const Arguments& arguments,
                    const std::function<void(std::int64_t, const cpu::RunOptions&)>& body);

}  // namespace mercer::ops
