// What every operation on pairs shares: checks of the arguments, the batch, the parameters of each batch item.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ops/prepared.h"

namespace mercer::ops {

using Shape = std::vector<std::int64_t>;

/// "(3, 4)".
std::string text_of(const Shape& shape);
/// NumPy's rule, right-aligned. Throws with both shapes.
Shape broadcast(const char* op, const Shape& a, const Shape& b);

/// Refuses an output that overlaps itself (a stride of 0 over several elements) or an input.
void check_output(const char* op, const Tensor& out, const Shape& expected, const std::vector<const Tensor*>& inputs);
/// float16, bfloat16, uint8, float32 or float64.
void check_input(const char* op, const char* name, const Tensor& tensor, int least_axes);

/// Strides of a tensor's leading axes along the axes of the batch; 0 where it is broadcast.
Shape batch_strides(const Tensor& tensor, int trailing_axes, const Shape& batch);

/// A call after its checks.
class PairCall {
 public:
  /// `swap`: run the formula with its sides swapped (x and z exchanged as well). `extra` are shapes of further batched
  /// arrays (leading axes).
  PairCall(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Arguments& arguments, bool swap,
           const std::vector<Shape>& extra = {});

  const char* op() const { return op_; }
  const Shape& batch() const { return batch_; }
  std::int64_t items() const { return items_; }
  std::int64_t m() const { return x_.shape[x_.ndim() - 2]; }
  std::int64_t n() const { return z_.shape[z_.ndim() - 2]; }
  std::int64_t features() const { return x_.shape.back(); }
  Dtype type() const { return compute_type(x_.dtype); }
  /// The formula that runs: exponents bound, sides swapped when asked for.
  const Formula::Prepared& formula() const { return *running_; }
  const Formula::Prepared& unswapped() const { return *bound_; }
  bool same_points() const { return same_points_; }
  /// Points on the broadcast side of the running formula.
  std::int64_t rows() const { return swap_ ? n() : m(); }
  /// Whether the symmetric half may be computed once.
  bool symmetric() const { return same_points_ && formula().symmetric; }
  std::vector<const Tensor*> inputs() const;
  const Tensor& x() const { return x_; }
  const Tensor& z() const { return z_; }

  /// Points and weights of one batch item, in the order that the running formula wants.
  cpu::PairItem item(std::int64_t index) const;
  /// Values of these parameter leaves for one batch item.
  std::vector<double> values(std::int64_t index, const std::vector<Expr>& leaves) const;
  /// Offset (in elements) of a batch item in an array with these batch strides.
  std::int64_t offset(std::int64_t index, const Shape& strides) const;

 private:
  struct ParamSource {
    Expr leaf;
    double number = 0;
    const Tensor* tensor = nullptr;
    Shape strides;
  };

  void resolve_params(const Formula::Prepared& prepared);
  void check_values(const char* name, const std::optional<Tensor>& values, bool read, std::int64_t count);
  cpu::Points points(bool of_x, std::int64_t index) const;

  const char* op_;
  Tensor x_, z_;
  const Arguments& arguments_;
  bool swap_, same_points_ = false;
  Shape batch_, x_strides_, z_strides_, row_strides_, col_strides_;
  std::int64_t items_ = 1;
  std::shared_ptr<const Formula::Prepared> bound_;
  const Formula::Prepared* running_ = nullptr;
  Formula formula_;
  std::vector<ParamSource> params_;
  std::vector<double> weights_;
};

/// The compiled program of a call's formula (or of several outputs under one key).
std::shared_ptr<const cpu::PairProgram> pair_program(const PairCall& call, Context& context);

/// Runs body(group) for independent groups: across threads when there are many, else each with all threads inside.
void for_each_group(std::int64_t groups, Context& context, const Arguments& arguments,
                    const std::function<void(std::int64_t, const cpu::RunOptions&)>& body);

}  // namespace mercer::ops
