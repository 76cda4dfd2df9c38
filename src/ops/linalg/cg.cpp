// Conjugate gradients with a preconditioner, on many columns at once:
//
//   r = b - a x;  z = P^-1 r;  p = z
//   until |r| is small:  alpha = r^T z / p^T a p;  x += alpha p;  r -= alpha a p
//                        beta = (P^-1 r)^T r / z^T r before;  z = P^-1 r;  p = z + beta p
//
// or minimal residuals, which share the rounds. A round is one product with the operator, of which every column makes
// what it needs (kernels/cuda/linalg/cg_state.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cg_columns.h"
#include "backend/rehearsal.h"
#include "core/dtype_error.h"
#include "core/error.h"
#include "core/system/parallel.h"
#include "ops/linalg/block_method.h"
#include "ops/linalg/low_rank_parts.h"

namespace mercer::linalg {
namespace {

constexpr std::int64_t kProductsOfRow = 10, kMostProducts = 10000;
/// Products of a captured call from which rounds are repeated by its graph.
constexpr std::int64_t kLeastRepeated = 4;

/// A vector as one column.
Tensor as_columns(const Tensor& t) {
  Tensor columns = t;
  if (t.ndim() == 1) {
    columns.shape.push_back(1);
    columns.strides.push_back(1);
  }
  return columns;
}

/// A number a column.
Tensor as_numbers(const Tensor& t) {
  Tensor numbers = t;
  if (t.ndim() == 0) {
    numbers.shape = {1};
    numbers.strides = {1};
  }
  return numbers;
}

class Solve {
 public:
  /// `indefinite`: by minimal residuals.
  Solve(const char* op, const Operator& a, const Tensor& b, const Tensor& x, const CgOptions& options, bool indefinite)
      : op_(op), a_(a), b_(b), x_(x), options_(options), indefinite_(indefinite) {
    check_shapes();
    check_numbers(options.info, "info");
    check_numbers(options.iterations, "iterations");
    const bool counts = options.info != nullptr && options.iterations != nullptr;
    require(!counts || !ops::overlap(*options.info, *options.iterations),
            "{}: iterations must not overlap info. Received arrays that share memory.", op);
    require(options.tolerance >= 0 && options.tolerance < 1, "{}: tol must be from 0 to 1. Received {}.", op,
            options.tolerance);
    require(options.most_products >= 0, "{}: max_iter must not be negative. Received {}.", op, options.most_products);
    check_ridges();
    check_preconditioner();
    check_capture();
    tolerance_ = options.tolerance > 0 ? options.tolerance : a.dtype == Dtype::float32 ? 1e-5 : 1e-10;
    most_ = options.most_products > 0 ? options.most_products
                                      : std::min(kProductsOfRow * std::max<std::int64_t>(a.order, 1), kMostProducts);
    if (a.order == 0) most_ = 0;
  }

  void run(Context& context) {
    const Tensor b = as_columns(b_), x = as_columns(x_);
    if (b.shape[1] == 0) return;
    const Preconditioner* const inverse = options_.preconditioner;
    const CgColumns::Sizes sizes{op_, a_.dtype, a_.order, b.shape[1], tolerance_, inverse != nullptr, indefinite_};
    const std::unique_ptr<CgColumns> columns = a_.device.kind == DeviceKind::cuda
                                                   ? cuda::cg_columns(sizes, a_.device, a_.queue)
                                                   : cpu::cg_columns(sizes, context.state().pool);
    Queue inner = a_.queue;
    inner.allocate = {};  // asked once, for the columns
    const Tensor guess = options_.guess != nullptr ? as_columns(*options_.guess) : Tensor();
    const Tensor ridges = options_.ridges != nullptr ? ridge_columns(b.shape[1]) : Tensor();
    columns->begin(b, options_.guess != nullptr ? &guess : nullptr,
                   {options_.ridge, options_.ridges != nullptr ? &ridges : nullptr});
    if (columns->repeats() && a_.multiply_in && (inverse == nullptr || inverse->apply_in) &&
        most_ >= kLeastRepeated) {
      repeat_rounds(*columns, inner);
      return end(*columns, x);
    }
    for (std::int64_t round = 0;; ++round) {
      stop_if_cancelled();
      const bool is_guess = round == 0 && options_.guess != nullptr, is_last = round == most_;
      if (inverse != nullptr && !is_guess && !is_last)
        inverse->apply(columns->residual(), columns->preconditioned(), inner);
      columns->turn({.first = round == 0, .measures = is_guess || round + 1 == most_, .last = is_last});
      if (is_last || columns->has_ended()) break;
      a_.multiply(columns->operand(), columns->product());
      columns->step();
    }
    end(*columns, x);
  }

 private:
  /// Runs the rounds of `run` in a captured graph, but in loops of it while a column is live: all between the first
  /// turn and the last two products, and these.
  void repeat_rounds(CgColumns& columns, const Queue& outer) const {
    const Preconditioner* const inverse = options_.preconditioner;
    const auto precondition = [&](const Queue& queue) {
      if (inverse != nullptr) inverse->apply_in(columns.residual(), columns.preconditioned(), queue);
    };
    const auto multiply = [&](const Queue& queue) { a_.multiply_in(columns.operand(), columns.product(), queue); };
    cuda::Rehearsal rehearsal{.purpose = cuda::Rehearsal::Purpose::workspace};
    Queue asks = outer;
    asks.rehearsal = &rehearsal;
    precondition(asks);
    multiply(asks);
    const bool has_guess = options_.guess != nullptr;
    if (!has_guess) precondition(outer);
    columns.turn({.first = true, .measures = has_guess, .last = false});
    columns.repeat(most_ - 2, rehearsal.bytes, [&](const Queue& queue) {
      multiply(queue);
      columns.step();
      precondition(queue);
      columns.turn({});
    });
    columns.repeat(1, rehearsal.bytes, [&](const Queue& queue) {
      multiply(queue);
      columns.step();
      precondition(queue);
      columns.turn({.first = false, .measures = true, .last = false});
      multiply(queue);
      columns.step();
      columns.turn({.first = false, .measures = false, .last = true});
    });
  }

  void check_shapes() const {
    require(b_.ndim() == 1 || b_.ndim() == 2, "{}: b must have the shape [n, k] or [n]. Received {}.", op_,
            ops::text_of(b_.shape));
    Shape expected = b_.shape;
    expected[0] = a_.order;
    ops::check_operand(op_, "b", b_, expected, a_);
    ops::check_operand(op_, "x", x_, expected, a_);
    if (options_.guess != nullptr) ops::check_operand(op_, "x0", *options_.guess, expected, a_);
    require(x_.count() == 0 || !ops::overlaps_itself(x_),
            "{}: no two elements of x may share memory. Received strides {}.", op_, ops::text_of(x_.strides));
    require(ops::same_view(b_, x_) || !ops::overlap(b_, x_),
            "{}: x must not overlap b, unless it is the same view. Received {} and {}.", op_, x_, b_);
  }

  void check_numbers(const Tensor* numbers, const char* name) const {
    if (numbers == nullptr) return;
    const Shape expected(b_.shape.begin() + 1, b_.shape.end());
    require(numbers->shape == expected && numbers->dtype == Dtype::int64,
            "{}: {} must be int64 of shape {}. Received {}.", op_, name, ops::text_of(expected), *numbers);
    ops::check_layout(op_, name, *numbers);
    require(numbers->device == a_.device, "{}: {} must lie on {}. Received one on {}.", op_, name, a_.device,
            numbers->device);
    const bool is_alone =
        !ops::overlaps_itself(*numbers) && !ops::overlap(*numbers, x_) && !ops::overlap(*numbers, b_);
    require(numbers->count() == 0 || is_alone,
            "{}: {} must not share memory with itself, b or x. Received {}.", op_, name, *numbers);
  }

  void check_ridges() const {
    const auto require_ridge = [&](double ridge) {
      require(ridge >= 0 && std::isfinite(ridge), "{}: ridge must be from 0 on and finite. Received {}.", op_, ridge);
    };
    require_ridge(options_.ridge);
    if (options_.ridges == nullptr) return;
    const Tensor& t = *options_.ridges;
    const Shape columns(b_.shape.begin() + 1, b_.shape.end());
    require(options_.ridge == 0, "{}: ridge and ridges must not be given both. Received {}.", op_, options_.ridge);
    require(t.shape == columns || t.ndim() == 0,
            "{}: ridge must be a number or have one for each column of b, shape {}. Received {}.", op_,
            ops::text_of(columns), ops::text_of(t.shape));
    require_dtype(t.dtype == Dtype::float32 || t.dtype == Dtype::float64,
                  "{}: ridge must be float32 or float64. Received {}.", op_, name_of(t.dtype));
    ops::check_layout(op_, "ridge", t);
    require(t.device == a_.device, "{}: ridge must lie on {}. Received one on {}.", op_, a_.device, t.device);
    require(t.count() == 0 || x_.count() == 0 || !ops::overlap(t, x_),
            "{}: ridge must not share memory with x. Received {}.", op_, t);
    if (a_.device.kind == DeviceKind::cuda) return;
    const std::int64_t count = t.count(), step = t.ndim() == 0 ? 0 : t.strides[0];
    for (std::int64_t j = 0; j < count; ++j)
      require_ridge(t.dtype == Dtype::float32 ? double(static_cast<const float*>(t.data)[j * step])
                                              : static_cast<const double*>(t.data)[j * step]);
  }

  /// A number a column, where one may stand for all.
  Tensor ridge_columns(std::int64_t count) const {
    Tensor t = *options_.ridges;
    if (t.ndim() == 0) {
      t.shape = {count};
      t.strides = {0};
    }
    return t;
  }

  void check_preconditioner() const {
    const Preconditioner* const inverse = options_.preconditioner;
    if (inverse == nullptr) return;
    require(!indefinite_, "{}: preconditioners are not offered. Received one.", op_);
    require(inverse->order == a_.order && inverse->dtype == a_.dtype && inverse->device == a_.device && inverse->apply,
            "{}: the preconditioner must be of the operator's order, dtype and device ({}, {}, {}). Received {}, {}, "
            "{}.",
            op_, a_.order, name_of(a_.dtype), a_.device, inverse->order, name_of(inverse->dtype), inverse->device);
    const std::int64_t columns = b_.ndim() == 1 ? 1 : b_.shape[1];
    require(inverse->columns == 0 || inverse->columns == columns,
            "{}: a preconditioner with a ridge for each column must have as many as b, {}. Received {}.", op_, columns,
            inverse->columns);
  }

  void check_capture() const {
    const bool is_captured = a_.device.kind == DeviceKind::cuda &&
                             cuda_is_capturing(a_.device.index, static_cast<CuStream>(a_.queue.stream));
    require(!is_captured || (options_.info != nullptr && options_.most_products > 0),
            "{}: in a graph capture nothing can be thrown, and the number of products is limited: info (check=False) "
            "and max_iter must be given. Received {} and {}.",
            op_, options_.info != nullptr ? "info" : "no info", options_.most_products);
    const Preconditioner* const inverse = options_.preconditioner;
    const LowRankParts* const parts = inverse != nullptr ? inverse->parts.get() : nullptr;
    if (is_captured && parts != nullptr && parts->columns != nullptr) parts->map(parts->inverse_map, op_, a_.queue);
  }

  void end(CgColumns& columns, const Tensor& x) const {
    Tensor info, rounds;
    if (options_.info != nullptr) info = as_numbers(*options_.info);
    if (options_.iterations != nullptr) rounds = as_numbers(*options_.iterations);
    columns.end(x, options_.info != nullptr ? &info : nullptr, options_.iterations != nullptr ? &rounds : nullptr);
    if (options_.info == nullptr) throw_for(columns.states());
  }

  /// The worst column, that which failed or that with the largest residual.
  void throw_for(const std::vector<CgColumn>& states) const {
    const auto badness = [](const CgColumn& state) {
      if (state.status == kCgConverged) return -1.0;
      const bool missed = state.status == kCgStopped || state.status == kCgStagnated;
      return missed ? state.measured / state.right : std::numeric_limits<double>::infinity();
    };
    const auto worst = std::max_element(states.begin(), states.end(), [&](const CgColumn& u, const CgColumn& v) {
      return badness(u) < badness(v);
    });
    if (worst->status == kCgConverged) return;
    const auto failed = std::count_if(states.begin(), states.end(),
                                      [](const CgColumn& state) { return state.status != kCgConverged; });
    const std::string which = fmt::format("column {} ({} of {} failed)", worst - states.begin(), failed, states.size());
    if (worst->status == kCgNotFinite)
      fail(ErrorKind::numerical, "{}: b, x and products with a must be finite. Received NaN or infinity in {}.", op_,
           which);
    if (worst->status == kCgNotPositive)
      fail(ErrorKind::numerical, "{}: a must be positive definite. Received p^T a p <= 0 in {} after {} products.", op_,
           which, worst->rounds);
    const double residual = std::sqrt(worst->measured / worst->right);
    if (worst->status == kCgStagnated)
      fail(ErrorKind::numerical,
           "{}: residuals must be at most {:.3g} of b. Received {:.3g} in {} after {} products, where it stagnated: "
           "{} gets no closer; a larger ridge or tol{} helps.",
           op_, tolerance_, residual, which, worst->rounds, name_of(a_.dtype),
           a_.dtype == Dtype::float32 ? ", or float64," : "");
    fail(ErrorKind::numerical,
         "{}: residuals must be at most {:.3g} of b. Received {:.3g} in {} after {} products, which were all of them; "
         "a larger max_iter, ridge or tol, or a preconditioner helps.",
         op_, tolerance_, residual, which, worst->rounds);
  }

  using Shape = ops::Shape;
  const char* op_;
  const Operator& a_;
  const Tensor &b_, &x_;
  const CgOptions& options_;
  const bool indefinite_;
  double tolerance_ = 0;
  std::int64_t most_ = 0;
};

}  // namespace

void cg(const Operator& a, const Tensor& b, const Tensor& x, const CgOptions& options, Context& context) {
  const char* op = options.verb != nullptr ? options.verb : "cg";
  ops::check_operator(op, a);
  Solve(op, a, b, x, options, false).run(context);
}

void minres(const Operator& a, const Tensor& b, const Tensor& x, const CgOptions& options, Context& context) {
  const char* op = options.verb != nullptr ? options.verb : "minres";
  ops::check_operator(op, a);
  Solve(op, a, b, x, options, true).run(context);
}

}  // namespace mercer::linalg
