// kron: the checks of its arguments, the job they become, and the way to a back end.
#include "mercer/kron.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "backend/cpu/kron/kron.h"
#include "backend/cuda/kron/kron.h"
#include "backend/kron_job.h"
#include "core/dtype_error.h"
#include "core/error.h"
#include "ops/call/call.h"
#include "ops/context.h"
#include "ops/kron/factor_name.h"
#include "ops/kron/kron_call.h"
#include "ops/tune/tuned_kron.h"

namespace mercer::kron {
namespace {

using ops::Shape;
using ops::text_of;

/// matmul and kron_matmul differ in the sides of x, out and the factors that are summed over.
enum class Side : std::uint8_t { right, left };

Tensor transposed(const Tensor& tensor) {
  Tensor turned = tensor;
  const std::size_t last = turned.shape.size() - 1;
  std::swap(turned.shape[last], turned.shape[last - 1]);
  std::swap(turned.strides[last], turned.strides[last - 1]);
  return turned;
}

std::int64_t product_of(const char* op, const char* what, const Shape& extents) {
  std::int64_t product = 1;
  bool fits = true;
  for (const std::int64_t extent : extents)
    if (extent == 0) return 0;
  for (const std::int64_t extent : extents) fits = fits && !__builtin_mul_overflow(product, extent, &product);
  require(fits, "{}: {} must fit in 63 bits. Received {}.", op, what, text_of(extents));
  return product;
}

void check_array(const char* op, const char* name, const Tensor& tensor) {
  require_dtype(size_of(tensor.dtype) > 1,  // no uint8, int8 or boolean
                "{}: {} must be float16, bfloat16, float32, float64, int32 or int64. Received {}.", op, name,
                name_of(tensor.dtype));
  ops::check_layout(op, name, tensor);
}

void check_same(const char* op, const char* name, const Tensor& tensor, const Tensor& x) {
  require_dtype(tensor.dtype == x.dtype, "{}: {} must have the dtype of x, {}. Received {}.", op, name,
                name_of(x.dtype), name_of(tensor.dtype));
  ops::check_device(op, name, tensor, x.device);
}

/// A factor as [..., P, Q], P the side of x. The tensor is the caller's: copies would take longer than all checks.
struct Factor {
  const Tensor* given;
  bool turned;

  std::int64_t p() const { return given->shape[axis(turned)]; }
  std::int64_t q() const { return given->shape[axis(!turned)]; }
  std::int64_t p_stride() const { return given->strides[axis(turned)]; }
  std::int64_t q_stride() const { return given->strides[axis(!turned)]; }

 private:
  std::size_t axis(bool last) const { return given->shape.size() - (last ? 1 : 2); }
};

/// A call as matmul's: x and out by rows.
class Call {
 public:
  Call(Side side, const Tensor& x, std::span<const Tensor> factors, const Options& options)
      : op_(options.verb ? options.verb : side == Side::right ? "kron.matmul" : "kron.kron_matmul"),
        side_(side), options_(options), x_(x), is_vector_(x.ndim() == 1) {
    read_factors(factors);
    read_x();
    check_scalars();
  }

  /// The shape of out as the caller sees it.
  Shape out_shape() const {
    Shape shape = batch_;
    if (is_vector_) shape.push_back(j_);
    else if (side_ == Side::right) shape.insert(shape.end(), {rows(), j_});
    else shape.insert(shape.end(), {j_, rows()});
    return shape;
  }

  /// `key`: of layout_key.
  void run(const Tensor& out, Context& context, const std::string& key) {
    const Tensor y = check_out(out);
    KronJob job = make_job(out, y);
    if (out.count() == 0) return;
    require(options_.queue.trial == nullptr || !(in_place_ || job.y.data == job.out.data),
            "{}: out must be neither x nor y while plans are measured, as the call is made again and again; the choice "
            "serves such calls too. Received an out that is {}.",
            op_, in_place_ ? "x" : "y");
    if (x_.device.kind == DeviceKind::cuda) return run_on_cuda(std::move(job), context, key);
    cpu::kron_matmul(job, {context.state().pool, context.target(), context.state().kron, ops::kron_choice_for});
  }

 private:
  std::int64_t rows() const { return x_.shape[x_.ndim() - 2]; }

  void run_on_cuda(KronJob job, Context& context, const std::string& key) const {
    ops::Trial* const trial = options_.queue.trial;
    RecentCache<cuda::KronProgram>& programs = trial != nullptr ? trial->krons : context.state().cuda_krons;
    const plan::Costs& costs = context.state().costs_on(x_.device, options_.queue);
    cuda::kron_matmul(std::move(job), {key, costs, programs, ops::kron_plan_for, trial == nullptr});
  }

  void read_factors(std::span<const Tensor> factors) {
    require(!factors.empty() && factors.size() <= kMostFactors, "{}: there must be 1 to {} factors. Received {}.", op_,
            kMostFactors, factors.size());
    const std::vector<bool>& turned = options_.transpose_factors;
    require(turned.empty() || turned.size() == factors.size(),
            "{}: transpose_factors must have one entry for each of {} factors. Received {}.", op_, factors.size(),
            turned.size());
    Shape in, out;
    factors_.reserve(factors.size()), in.reserve(factors.size()), out.reserve(factors.size());
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const char* const name = ops::factor_name(i);
      require(factors[i].ndim() >= 1, "{}: {} must have at least 1 axis. Received shape {}.", op_, name,
              text_of(factors[i].shape));
      check_array(op_, name, factors[i]);
      const Tensor& given = factors[i].ndim() == 1 ? as_matrix(factors[i]) : factors[i];
      const Factor factor{&given, (!turned.empty() && turned[i]) != (side_ == Side::left)};
      factors_.push_back(factor);
      in.push_back(factor.p());
      out.push_back(factor.q());
      if (given.ndim() > 2) batch_ = ops::broadcast(op_, batch_, ops::leading(given, 2));
    }
    factor_batch_ = batch_;
    k_ = product_of(op_, "the product of the extents of the factors", in);
    j_ = product_of(op_, "the product of the extents of the factors", out);
  }

  /// A vector is summed over, as numpy.matmul does with one: a column from the right, a row from the left.
  const Tensor& as_matrix(const Tensor& vector) {
    Tensor& matrix = matrices_.emplace_back(vector);
    const std::size_t axis = side_ == Side::right ? 1 : 0;
    matrix.shape.insert(matrix.shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
    matrix.strides.insert(matrix.strides.begin() + static_cast<std::ptrdiff_t>(axis), 0);
    return matrix;
  }

  /// x becomes [..., M, K]; a vector is one row of it.
  void read_x() {
    require(x_.ndim() >= 1, "{}: x must have at least 1 axis. Received shape {}.", op_, text_of(x_.shape));
    check_array(op_, "x", x_);
    require(!(is_vector_ && options_.transpose_x), "{}: transpose_x needs an x of at least 2 axes. Received shape {}.",
            op_, text_of(x_.shape));
    const Shape given = x_.shape;
    if (is_vector_) {
      x_.shape.insert(x_.shape.begin(), 1);
      x_.strides.insert(x_.strides.begin(), 0);
    } else if (options_.transpose_x != (side_ == Side::left)) {
      x_ = transposed(x_);
    }
    require(x_.shape.back() == k_,
            "{}: the {} axis of op(x) must have the product of the {} of op(factors), {}. Received shape {}{}.", op_,
            side_ == Side::right || is_vector_ ? "last" : "last but one", side_ == Side::right ? "rows" : "columns", k_,
            text_of(given), options_.transpose_x ? ", transposed" : "");
    if (x_.ndim() > 2) batch_ = ops::broadcast(op_, batch_, ops::leading(x_, 2));
    for (std::size_t i = 0; i < factors_.size(); ++i)
      check_same(op_, ops::factor_name(i), *factors_[i].given, x_);
  }

  void check_scalars() const {
    require(options_.beta == 0 || options_.y != nullptr, "{}: y must be given where beta is not 0. Received beta = {}.",
            op_, options_.beta);
    if (!is_whole(x_.dtype)) return;
    constexpr double kMost = 9007199254740992.0;  // 2^53: up to here each whole number is a double
    for (const auto& [name, value] : {std::pair{"alpha", options_.alpha}, {"beta", options_.beta}})
      require(std::nearbyint(value) == value && std::abs(value) <= kMost,
              "{}: {} must be a whole number of magnitude at most 2^53 for arrays of {}. Received {}.", op_, name,
              name_of(x_.dtype), value);
  }

  /// Returns y with the shape of out; without data where it is not read.
  Tensor check_out(const Tensor& out) {
    require_dtype(out.dtype == x_.dtype, "{}: out must have the dtype of x, {}. Received {}.", op_, name_of(x_.dtype),
                  name_of(out.dtype));
    const Shape expected = out_shape();
    std::vector<const Tensor*> inputs{&x_};
    inputs.reserve(factors_.size() + 2);
    for (const Factor& factor : factors_) inputs.push_back(factor.given);
    in_place_ = out.data == x_.data && k_ == j_ && same_view(by_rows(out), x_);
    if (in_place_) inputs.front() = factors_.front().given;  // the device is checked by it as well
    Tensor y;
    if (options_.y != nullptr) y = broadcast_y(*options_.y, expected);
    const bool adds_to_itself = options_.y != nullptr && ops::same_view(y, out);
    if (options_.beta != 0 && !adds_to_itself) inputs.push_back(&y);
    ops::check_output(op_, out, expected, inputs);
    if (options_.beta == 0) y.data = nullptr;
    return y;
  }

  static bool same_view(const Tensor& a, const Tensor& b) {
    if (a.data != b.data || a.shape != b.shape) return false;
    for (int axis = 0; axis < a.ndim(); ++axis)
      if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
    return true;
  }

  Tensor broadcast_y(const Tensor& given, const Shape& shape) const {
    check_array(op_, "y", given);
    check_same(op_, "y", given, x_);
    bool fits = given.shape.size() <= shape.size();
    for (std::size_t back = 1; fits && back <= given.shape.size(); ++back) {
      const std::int64_t extent = given.shape[given.shape.size() - back];
      fits = extent == 1 || extent == shape[shape.size() - back];
    }
    require(fits, "{}: y must broadcast to the shape of out, {}. Received {}.", op_, text_of(shape),
            text_of(given.shape));
    Tensor y = given;
    y.strides = ops::batch_strides(given, 0, shape);
    y.shape = shape;
    return y;
  }

  /// Whether out and y are [..., M, J] as they are.
  bool lies_by_rows() const { return !is_vector_ && side_ == Side::right; }

  /// out or y as [..., M, J].
  Tensor by_rows(const Tensor& tensor) const {
    Tensor turned = tensor;
    if (is_vector_ && tensor.ndim() >= 1) {
      turned.shape.insert(turned.shape.end() - 1, 1);
      turned.strides.insert(turned.strides.end() - 1, 0);
    } else if (side_ == Side::left && tensor.ndim() >= 2) {
      turned = transposed(tensor);
    }
    return turned;
  }

  KronJob make_job(const Tensor& out, const Tensor& y) const {
    KronJob job;
    job.op = op_;
    job.dtype = x_.dtype;
    job.device = x_.device.index;
    job.queue = &options_.queue;
    job.progress = options_.progress ? &options_.progress : nullptr;
    job.k = k_;
    job.j = j_;
    job.alpha = options_.alpha;
    job.beta = options_.beta;
    job.in_place = in_place_;
    job.x = array(x_);
    job.out = lies_by_rows() ? array(out) : array(by_rows(out));
    if (y.data != nullptr) job.y = lies_by_rows() ? array(y) : array(by_rows(y));
    job.factors.reserve(factors_.size());
    for (const Factor& factor : factors_) {
      const Shape strides = ops::batch_strides(*factor.given, 2, batch_);
      KronFactor& f = job.factors.emplace_back(KronFactor{static_cast<const char*>(factor.given->data), factor.p(),
                                                          factor.q(), factor.p_stride(), factor.q_stride()});
      for (std::size_t axis = 0; axis < batch_.size(); ++axis)
        if (is_outer(axis)) f.outer_strides.push_back(strides[axis]);
    }
    for (std::size_t axis = 0; axis < batch_.size(); ++axis)
      (is_outer(axis) ? job.outer : job.rows).push_back(batch_[axis]);
    job.rows.push_back(rows());
    job.items = product_of(op_, "the batch", job.outer);
    job.row_count = product_of(op_, "the batch and its rows", job.rows);
    join_rows(job);
    return job;
  }

  /// Whether a factor varies along this axis of the batch.
  bool is_outer(std::size_t axis) const {
    const std::size_t added = batch_.size() - factor_batch_.size();
    return axis >= added && factor_batch_[axis - added] != 1;
  }

  KronArray array(const Tensor& tensor) const {
    KronArray array{static_cast<char*>(tensor.data), tensor.strides.back()};
    const Shape strides = ops::batch_strides(tensor, 2, batch_);
    for (std::size_t axis = 0; axis < batch_.size(); ++axis)
      (is_outer(axis) ? array.outer_strides : array.row_strides).push_back(strides[axis]);
    array.row_strides.push_back(tensor.strides[tensor.ndim() - 2]);
    return array;
  }

  /// Axes of one element go, and two neighbours that every array steps through as one become one.
  static void join_rows(KronJob& job) {
    std::vector<KronArray*> arrays{&job.x, &job.out};
    if (job.y.data != nullptr) arrays.push_back(&job.y);
    const auto erase = [&](std::size_t axis) {
      job.rows.erase(job.rows.begin() + static_cast<std::ptrdiff_t>(axis));
      for (KronArray* a : arrays) a->row_strides.erase(a->row_strides.begin() + static_cast<std::ptrdiff_t>(axis));
    };
    for (std::size_t axis = job.rows.size(); axis-- > 0 && job.rows.size() > 1;)
      if (job.rows[axis] == 1) erase(axis);
    for (std::size_t axis = job.rows.size() - 1; axis-- > 0;) {
      const std::int64_t extent = job.rows[axis + 1];
      const bool joins = std::all_of(arrays.begin(), arrays.end(), [&](const KronArray* a) {
        return a->row_strides[axis] == extent * a->row_strides[axis + 1];
      });
      if (!joins) continue;
      job.rows[axis + 1] *= job.rows[axis];
      erase(axis);
    }
  }

  const char* op_;
  Side side_;
  const Options& options_;
  Tensor x_;
  bool is_vector_, in_place_ = false;
  std::vector<Factor> factors_;
  std::deque<Tensor> matrices_;  // of factors that are vectors
  Shape batch_, factor_batch_;
  std::int64_t k_ = 1, j_ = 1;
};

/// Adds words to a text that has room for them.
class KeyWriter {
 public:
  explicit KeyWriter(std::size_t words) : key_(words * sizeof(std::int64_t), '\0') {}

  template <class... Values>
  void add(Values... values) {
    static_assert(((sizeof values <= sizeof(std::int64_t)) && ...));
    (std::memcpy(key_.data() + std::exchange(end_, end_ + sizeof(std::int64_t)), &values, sizeof values), ...);
  }
  void add_layout(const Tensor& tensor) {
    add(static_cast<int>(tensor.dtype), static_cast<int>(tensor.device.kind), tensor.device.index, tensor.shape.size(),
        tensor.strides.size());
    for (const std::int64_t extent : tensor.shape) add(extent);
    for (const std::int64_t stride : tensor.strides) add(stride);
  }
  std::string take() { return std::move(key_); }

  static std::size_t layout_words(const Tensor& tensor) { return 5 + tensor.shape.size() + tensor.strides.size(); }

 private:
  std::string key_;
  std::size_t end_ = 0;
};

/// Equal for calls that differ in nothing but addresses, as far as programs can tell.
std::string layout_key(Side side, const Tensor& x, std::span<const Tensor> factors, const Options& options,
                       const Tensor& out, std::int64_t part_bytes) {
  const Tensor* const y = options.beta != 0 ? options.y : nullptr;
  const auto is_aligned = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0; };
  std::size_t words = 16 + KeyWriter::layout_words(x) + KeyWriter::layout_words(out) + factors.size();
  if (y != nullptr) words += KeyWriter::layout_words(*y);
  for (const Tensor& factor : factors) words += KeyWriter::layout_words(factor);
  KeyWriter key(words);
  key.add(static_cast<int>(side), is_aligned(x), is_aligned(out), x.data == out.data, options.alpha, options.beta,
          options.transpose_x, part_bytes, factors.size(), options.transpose_factors.size(), y != nullptr);
  key.add_layout(x);
  key.add_layout(out);
  if (y != nullptr) {
    key.add(is_aligned(*y), y->data == out.data);
    key.add_layout(*y);
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    key.add(i < options.transpose_factors.size() && options.transpose_factors[i]);
    key.add_layout(factors[i]);
  }
  return key.take();
}

/// Runs a call that differs in nothing but addresses from one that was checked before, where there is its program.
bool run_again(const std::string& key, const Tensor& x, std::span<const Tensor> factors, const Options& options,
               const Tensor& out, Context& context) {
  const Queue& queue = options.queue;
  const bool reads_y = options.beta != 0;
  if (queue.trial != nullptr || queue.rehearsal != nullptr || (options.y != nullptr) != reads_y) return false;
  const auto program = context.state().cuda_krons.find(key);
  if (program == nullptr || out.data == nullptr) return false;
  const auto is_apart = [&](const Tensor& input) { return input.data != nullptr && !ops::overlap(out, input); };
  if (!is_apart(x) || (reads_y && !is_apart(*options.y))) return false;
  cuda::KronAddresses arrays{static_cast<char*>(x.data), reads_y ? static_cast<char*>(options.y->data) : nullptr,
                             static_cast<char*>(out.data), {}};
  arrays.factors.reserve(factors.size());
  for (const Tensor& factor : factors) {
    if (!is_apart(factor)) return false;
    arrays.factors.push_back(static_cast<const char*>(factor.data));
  }
  const char* const op = options.verb ? options.verb : "kron.matmul";
  cuda::kron_matmul_again(*program, cuda::place_of(op, x.device, queue, program->problem.type), arrays);
  return true;
}

}  // namespace

void matmul(const Tensor& x, std::span<const Tensor> factors, const Tensor& out, const Options& options,
            Context& context) {
  ops::KronCall(false, x, factors, options).run(out, context);
}

void kron_matmul(std::span<const Tensor> factors, const Tensor& x, const Tensor& out, const Options& options,
                 Context& context) {
  ops::KronCall(true, x, factors, options).run(out, context);
}

std::vector<std::int64_t> matmul_shape(const Tensor& x, std::span<const Tensor> factors, const Options& options) {
  return Call(Side::right, x, factors, options).out_shape();
}

std::vector<std::int64_t> kron_matmul_shape(std::span<const Tensor> factors, const Tensor& x, const Options& options) {
  return Call(Side::left, x, factors, options).out_shape();
}

std::int64_t workspace_size(const Options& options, const std::function<void(const Options&)>& call) {
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace};
  Options asked = options;
  asked.queue.rehearsal = &rehearsal;
  call(asked);
  return rehearsal.bytes;
}

}  // namespace mercer::kron

namespace mercer::ops {

struct KronCall::Checked {
  kron::Call call;
};

KronCall::KronCall(bool left, const Tensor& x, std::span<const Tensor> factors, const kron::Options& options)
    : left_(left), x_(x), factors_(factors), options_(options) {}

KronCall::~KronCall() = default;

KronCall::Checked& KronCall::checked() {
  if (!checked_) checked_.reset(new Checked{{left_ ? kron::Side::left : kron::Side::right, x_, factors_, options_}});
  return *checked_;
}

std::vector<std::int64_t> KronCall::out_shape() { return checked().call.out_shape(); }

void KronCall::run(const Tensor& out, Context& context) {
  std::string key;
  if (x_.device.kind == DeviceKind::cuda) {
    key = kron::layout_key(left_ ? kron::Side::left : kron::Side::right, x_, factors_, options_, out,
                           context.state().costs_on(x_.device, options_.queue).part_bytes);
    if (kron::run_again(key, x_, factors_, options_, out, context)) return;
  }
  checked().call.run(out, context, key);
}

}  // namespace mercer::ops
