#include "ops/call/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/dtype_error.h"
#include "core/error.h"
#include "core/key.h"
#include "formula/suggest.h"
#include "ops/costs/cpu_costs.h"
#include "ops/dump.h"

namespace mercer::ops {
namespace {

/// Up to here numbers of the type count exactly.
std::int64_t largest_index(Dtype type) { return std::int64_t{1} << (type == Dtype::float32 ? 24 : 53); }

/// The magnitude that offset + (0 to count) may reach; the largest number where it does not fit.
std::int64_t farthest_index(std::int64_t offset, std::int64_t count) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t reach = 0;
  const bool fits = offset >= -kMost && !__builtin_add_overflow(std::abs(offset), count, &reach);
  return fits ? reach : kMost;
}

struct Extent {
  const char* begin;
  const char* end;
};

Extent extent(const Tensor& t) {
  std::int64_t low = 0, high = 0;
  for (int axis = 0; axis < t.ndim(); ++axis) {
    const std::int64_t reach = (t.shape[axis] - 1) * t.strides[axis];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  const char* base = static_cast<const char*>(t.data);
  return {base + low * size, base + (high + 1) * size};
}

/// True when both are rows of one wider row-major array and their columns do not meet.
bool interleaved(const Tensor& a, const Tensor& b) {
  if (a.ndim() < 2 || b.ndim() < 2 || size_of(a.dtype) != size_of(b.dtype)) return false;
  const auto size = static_cast<std::int64_t>(size_of(a.dtype));
  const std::int64_t pitch = a.strides[a.ndim() - 2] * size;
  if (a.strides.back() != 1 || b.strides.back() != 1) return false;
  if (pitch <= 0 || pitch != b.strides[b.ndim() - 2] * size) return false;
  for (const Tensor* t : {&a, &b})
    for (int axis = 0; axis + 2 < t->ndim(); ++axis)
      if (t->shape[axis] > 1 && t->strides[axis] * size % pitch != 0) return false;
  const std::int64_t gap = (static_cast<const char*>(b.data) - static_cast<const char*>(a.data)) % pitch;
  const std::int64_t shift = gap < 0 ? gap + pitch : gap;
  return shift >= a.shape.back() * size && shift + b.shape.back() * size <= pitch;
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.count() == 0 || b.count() == 0) return false;
  const Extent ea = extent(a), eb = extent(b);
  if (ea.end <= eb.begin || eb.end <= ea.begin) return false;
  return !interleaved(a, b);
}

namespace {

/// Whether every axis steps over all that the later ones reach, as rows after rows do.
bool lies_in_order(const Tensor& t) {
  std::int64_t reach = 0;
  for (int axis = t.ndim(); axis-- > 0;) {
    if (t.shape[axis] == 1) continue;
    if (t.strides[axis] <= reach) return false;
    reach += t.strides[axis] * (t.shape[axis] - 1);
  }
  return true;
}

}  // namespace

bool overlaps_itself(const Tensor& t) {
  if (lies_in_order(t)) return false;
  // Sorted by stride, every axis must step over all that the smaller ones reach.
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (int axis = 0; axis < t.ndim(); ++axis)
    if (t.shape[axis] > 1) axes.emplace_back(std::abs(t.strides[axis]), t.shape[axis]);
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (auto [stride, extent] : axes) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

void check_layout(const char* op, const char* name, const Tensor& tensor) {
  const bool counts = std::all_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t n) { return n >= 0; });
  require(counts && tensor.strides.size() == tensor.shape.size(),
          "{}: {} must have extents of at least 0 and a stride for each. Received shape {} and strides {}.", op, name,
          text_of(tensor.shape), text_of(tensor.strides));
  require(tensor.data != nullptr || tensor.count() == 0, "{}: {} has no memory. Received a null pointer.", op, name);
}

bool same_view(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

Shape leading(const Tensor& tensor, int trailing) {
  return Shape(tensor.shape.begin(), tensor.shape.end() - trailing);
}

char* element(const Tensor& tensor, std::int64_t elements) {
  return static_cast<char*>(tensor.data) + elements * static_cast<std::int64_t>(size_of(tensor.dtype));
}

std::string ShapeText::to_text() const {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Shape broadcast(const char* op, const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()));
  for (std::size_t back = 1; back <= result.size(); ++back) {
    const std::int64_t p = back <= a.size() ? a[a.size() - back] : 1, q = back <= b.size() ? b[b.size() - back] : 1;
    require(p == q || p == 1 || q == 1, "{}: batch axes must broadcast. Received {} and {}.", op, text_of(a),
            text_of(b));
    result[result.size() - back] = p == 1 ? q : p;
  }
  return result;
}

void check_input(const char* op, const char* name, const Tensor& tensor, int least_axes) {
  require(tensor.ndim() >= least_axes, "{}: {} must have at least {} axes. Received shape {}.", op, name, least_axes,
          text_of(tensor.shape));
  require_dtype(is_of_points(tensor.dtype), "{}: {} must be {}; cast it, to float32 for instance. Received {}.", op,
                name, kPointTypes, name_of(tensor.dtype));
  check_layout(op, name, tensor);
}

void check_computing_type(const char* op, const char* name, const Tensor& tensor, Dtype type) {
  require_dtype(compute_type(tensor.dtype) == type, "{}: {} must have the computing type of x, {}. Received {}.", op,
                name, name_of(type), name_of(tensor.dtype));
}

void check_side(const char* op, const char* name, const Tensor& tensor, Dtype type) {
  require_dtype(tensor.dtype != Dtype::int32 || type == Dtype::float64,
                "{}: {} may be int32 where x is float64 or int32: float32 has not all of its values. Received int32.",
                op, name);
}

void check_output_type(const char* op, const Tensor& out, Dtype type) {
  require_dtype(out.dtype == type, "{}: out must be {}. Received {}.", op, name_of(type), name_of(out.dtype));
}

void check_device(const char* op, const char* name, const Tensor& tensor, Device device) {
  require(tensor.device == device, "{}: {} must lie on the device of x, {}. Received one on {}.", op, name,
          device, tensor.device);
}

void check_output(const char* op, const Tensor& out, const Shape& expected, const std::vector<const Tensor*>& inputs) {
  require(out.shape == expected, "{}: out must have shape {}. Received {}.", op, text_of(expected), text_of(out.shape));
  check_device(op, "out", out, inputs.front()->device);
  check_layout(op, "out", out);
  if (out.count() == 0) return;
  require(!overlaps_itself(out), "{}: no two elements of out may share memory. Received strides {}.", op,
          text_of(out.strides));
  for (const Tensor* input : inputs)
    require(!overlap(out, *input), "{}: out must not overlap an input. Received {} sharing memory with {}.", op,
            out, *input);
}

Shape batch_strides(const Tensor& tensor, int trailing, const Shape& batch) {
  Shape strides(batch.size(), 0);
  const int axes = tensor.ndim() - trailing;
  for (int back = 1; back <= axes; ++back)
    if (tensor.shape[axes - back] != 1) strides[batch.size() - back] = tensor.strides[axes - back];
  return strides;
}

PairCall::PairCall(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Arguments& arguments,
                   bool swap, const std::vector<Shape>& extra)
    : op_(arguments.verb ? arguments.verb : op), x_(x), z_(z ? *z : x), arguments_(arguments), swap_(swap) {
  const Formula::Prepared& prepared = f.prepared();
  check_points();
  batch_ = broadcast(op_, leading(x_, 2), leading(z_, 2));
  for (const Shape& shape : extra) batch_ = broadcast(op_, batch_, shape);
  resolve_params(prepared);
  check_values("row", arguments.row, {prepared.uses.row, prepared.names.row}, m());
  check_values("col", arguments.col, {prepared.uses.col, prepared.names.col}, n());
  for (std::int64_t extent : batch_) {
    const bool fits = !__builtin_mul_overflow(items_, extent, &items_);
    require(fits, "{}: the batch is too large. Received {}.", op_, text_of(batch_));
  }
  read_weights({prepared.uses.w, prepared.names.w});
  check_indices(prepared.uses);
  same_points_ = (z == nullptr || same_view(x_, z_)) && arguments.i_offset == arguments.j_offset;
  if (prepared.uses.row || prepared.uses.col)
    same_points_ = same_points_ && arguments.row && arguments.col && same_view(*arguments.row, *arguments.col);
  x_strides_ = batch_strides(x_, 2, batch_);
  z_strides_ = batch_strides(z_, 2, batch_);
  if (arguments.row) row_strides_ = batch_strides(*arguments.row, 1, batch_);
  if (arguments.col) col_strides_ = batch_strides(*arguments.col, 1, batch_);
  running_ = swap ? &bound_->swapped() : bound_.get();
}

void PairCall::swap_sides() {
  swap_ = !swap_;
  running_ = swap_ ? &bound_->swapped() : bound_.get();
}

bool PairCall::items_are_alike() const {
  if (items_ == 1) return true;
  return !arguments_.row && !arguments_.col &&
         std::ranges::all_of(params_, [](const ParamSource& source) { return source.tensor == nullptr; });
}

void PairCall::check_points() {
  check_input(op_, "x", x_, 2);
  check_input(op_, "z", z_, 2);
  check_device(op_, "z", z_, x_.device);
  require_dtype(x_.dtype == z_.dtype, "{}: x and z must have one dtype. Received {} and {}.", op_, name_of(x_.dtype),
                name_of(z_.dtype));
  require(x_.shape.back() == z_.shape.back(),
          "{}: x and z must have the same number of features (last axis). Received {} and {}.", op_, text_of(x_.shape),
          text_of(z_.shape));
}

void PairCall::read_weights(Reading reading) {
  if (!arguments_.w) {
    require(!reading.needs, "{}: the formula reads the weights w[k]; give w. Received none.", op_);
    return;
  }
  require(reading.names, "{}: w was given, but the formula does not read the weights w[k].", op_);
  const Tensor& w = *arguments_.w;
  check_input(op_, "w", w, 1);
  check_side(op_, "w", w, type());
  check_device(op_, "w", w, x_.device);
  require(w.ndim() == 1 && w.shape[0] == features(),
          "{}: w must have shape ({},), one weight per feature. Received {}.", op_, features(), text_of(w.shape));
  if (on_cuda()) return;  // packed there
  for (std::int64_t k = 0; k < features(); ++k)
    weights_.push_back(cpu::read_element(w.data, w.dtype, k * w.strides[0]));
}

void PairCall::check_indices(const ir::Uses& uses) const {
  if (!(uses.index_i || uses.index_j)) return;
  const std::int64_t last =
      std::max(farthest_index(arguments_.i_offset, m()), farthest_index(arguments_.j_offset, n()));
  require(last <= largest_index(type()), "{}: the formula reads i or j, which {} counts up to {}{}. Received {}.", op_,
          name_of(type()), largest_index(type()), type() == Dtype::float32 ? "; use float64" : "", last);
}

void PairCall::check_values(const char* name, const std::optional<Tensor>& values, Reading reading,
                            std::int64_t count) {
  if (!values) {
    require(!reading.needs, "{}: the formula reads {}; give it, one value per point. Received none.", op_, name);
    return;
  }
  require(reading.names, "{}: {} was given, but the formula does not read it.", op_, name);
  check_input(op_, name, *values, 1);
  check_side(op_, name, *values, type());
  check_device(op_, name, *values, x_.device);
  require(values->shape.back() == count, "{}: {} must have one value per point ({} in the last axis). Received {}.",
          op_, name, count, text_of(values->shape));
  batch_ = broadcast(op_, batch_, leading(*values, 1));
}

namespace {

/// A name that a formula takes for a parameter, where other systems have points of that name.
std::string point_hint(std::string_view name) {
  if (name == "y" || name == "Y" || name == "Z") return " (did you mean 'z', the points of the columns?)";
  if (name == "X") return " (did you mean 'x', the points of the rows?)";
  return "";
}

}  // namespace

void PairCall::resolve_params(const Formula::Prepared& prepared) {
  for (const auto& [name, value] : arguments_.params) {
    bool known = false;
    for (const Expr& leaf : prepared.params) known = known || leaf->name == name;
    if (known) continue;
    std::vector<std::string_view> names;
    for (const Expr& leaf : prepared.params) names.push_back(leaf->name);
    fail(ErrorKind::invalid_argument, "{}: {}", op_, formula::unknown_parameter(name, names));
  }
  for (const Expr& leaf : prepared.params) {
    params_.push_back(source_of(leaf));
    if (params_.back().tensor) batch_ = broadcast(op_, batch_, params_.back().tensor->shape);
  }
  bind_exponents(prepared);
}

PairCall::ParamSource PairCall::source_of(const Expr& leaf) const {
  const auto given = arguments_.params.find(leaf->name);
  if (given == arguments_.params.end()) {
    require(leaf->has_default, "{}: the parameter \"{}\" needs a value{}. Received none.", op_, leaf->name,
            point_hint(leaf->name));
    return {leaf, leaf->value};
  }
  if (const double* number = std::get_if<double>(&given->second)) return {leaf, *number};
  const Tensor& t = std::get<Tensor>(given->second);
  require_dtype(t.dtype == Dtype::float32 || t.dtype == Dtype::float64 || t.dtype == Dtype::int64,
                "{}: the parameter \"{}\" must be a number or an array of float32, float64 or int64. Received {}.", op_,
                leaf->name, t);
  check_layout(op_, fmt::format("the parameter \"{}\"", leaf->name).c_str(), t);
  require(t.device.kind == DeviceKind::cpu || t.device == x_.device,
          "{}: the parameter \"{}\" must lie on the CPU or on the device of x, {}. Received one on {}.", op_,
          leaf->name, x_.device, t.device);
  if (t.device.kind == DeviceKind::cuda) return {leaf, 0, &t};  // never read back
  if (t.ndim() == 0) return {leaf, cpu::read_element(t.data, t.dtype, 0)};
  return {leaf, 0, &t};
}

void PairCall::bind_exponents(const Formula::Prepared& prepared) {
  std::vector<double> numbers;
  bool all = !prepared.exponents.empty();
  for (const Expr& leaf : prepared.exponents)
    for (const ParamSource& source : params_) {
      if (!same(source.leaf, leaf)) continue;
      all = all && source.tensor == nullptr;
      numbers.push_back(source.number);
    }
  if (all) bound_ = prepared.bound(numbers);
  else bound_ = std::shared_ptr<const Formula::Prepared>(std::shared_ptr<void>(), &prepared);
}

std::vector<const Tensor*> PairCall::inputs() const {
  std::vector<const Tensor*> list{&x_, &z_};
  for (const auto* optional : {&arguments_.w, &arguments_.row, &arguments_.col})
    if (*optional) list.push_back(&**optional);
  for (const ParamSource& source : params_)
    if (source.tensor) list.push_back(source.tensor);
  return list;
}

std::int64_t PairCall::offset(std::int64_t index, const Shape& strides) const {
  std::int64_t offset = 0;
  for (std::size_t axis = batch_.size(); axis-- > 0;) {
    offset += index % batch_[axis] * strides[axis];
    index /= batch_[axis];
  }
  return offset;
}

std::vector<double> PairCall::values(std::int64_t index, const std::vector<Expr>& leaves) const {
  std::vector<double> values;
  for (const Expr& leaf : leaves)
    for (const ParamSource& source : params_) {
      if (!same(source.leaf, leaf)) continue;
      const Tensor* t = source.tensor;
      values.push_back(t ? cpu::read_element(t->data, t->dtype, offset(index, batch_strides(*t, 0, batch_)))
                         : source.number);
      break;
    }
  return values;
}

double PairCall::number(std::int64_t index, const std::string& name) const {
  for (const ParamSource& source : params_)
    if (source.leaf->name == name) return values(index, {source.leaf})[0];
  return 0;  // every parameter that was given has a source
}

cpu::Points PairCall::points(bool of_x, std::int64_t index) const {
  const Tensor& t = of_x ? x_ : z_;
  const std::optional<Tensor>& user = of_x ? arguments_.row : arguments_.col;
  cpu::Points points;
  points.data = element(t, offset(index, of_x ? x_strides_ : z_strides_));
  points.dtype = t.dtype;
  points.count = t.shape[t.ndim() - 2];
  points.features = t.shape.back();
  points.point_stride = t.strides[t.ndim() - 2];
  points.feature_stride = t.strides.back();
  points.index_offset = of_x ? arguments_.i_offset : arguments_.j_offset;
  if (user) {
    const std::int64_t at = offset(index, of_x ? row_strides_ : col_strides_);
    points.user = {element(*user, at), user->dtype, user->strides.back()};
  }
  return points;
}

cpu::PairItem PairCall::item(std::int64_t index) const {
  cpu::PairItem item;
  item.x = points(!swap_, index);
  item.z = points(swap_, index);
  item.weights = weights_.empty() ? nullptr : weights_.data();
  return item;
}

cuda::JobSide PairCall::job_side(bool of_x) const {
  const Tensor& t = of_x ? x_ : z_;
  const std::optional<Tensor>& user = of_x ? arguments_.row : arguments_.col;
  cuda::JobSide side;
  side.points = {t.data, t.dtype, of_x ? x_strides_ : z_strides_};
  side.count = t.shape[t.ndim() - 2];
  side.point_stride = t.strides[t.ndim() - 2];
  side.feature_stride = t.strides.back();
  side.index_offset = of_x ? arguments_.i_offset : arguments_.j_offset;
  if (user) {
    side.user = {user->data, user->dtype, of_x ? row_strides_ : col_strides_};
    side.user_stride = user->strides.back();
  }
  return side;
}

cuda::PairJob PairCall::job(Context& context) const {
  constexpr std::int64_t kMostFeatures = 0x7fffffff - 4096;
  require(features() <= kMostFeatures, "{}: at most {} features are offered on CUDA. Received {}.", op_, kMostFeatures,
          features());
  cuda::PairJob job;
  job.op = op_;
  job.device = x_.device.index;
  job.queue = &arguments_.queue;
  job.batch = batch_;
  job.items = items_;
  job.x = job_side(!swap_);
  job.z = job_side(swap_);
  job.features = features();
  if (arguments_.w) {
    job.weights = {arguments_.w->data, arguments_.w->dtype, {}};
    job.weight_stride = arguments_.w->strides[0];
  }
  for (const ParamSource& source : params_) {
    cuda::JobParam param{source.leaf, source.number, {}, false};
    if (const Tensor* t = source.tensor) {
      param.array = {t->data, t->dtype, batch_strides(*t, 0, batch_)};
      param.on_device = t->device.kind == DeviceKind::cuda;
    }
    job.params.push_back(std::move(param));
  }
  job.type = type();
  job.same_points = same_points_;
  job.own_costs = &context.state().costs_on(x_.device, arguments_.queue);
  job.part_bytes = job.own_costs->part_bytes;
  return job;
}

plan::PairProblem pair_problem(const PairCall& call, Context& context) {
  plan::PairProblem problem;
  problem.type = call.type();
  problem.target = context.target();
  problem.cpu = cpu_in_use().row;
  problem.empty_features = call.features() == 0;
  problem.rows_hint = std::min(call.rows(), plan::kManyRows);
  return problem;
}

std::string key_of(std::string_view text, const plan::PairProblem& problem) {
  return cache_key(text, problem.type, problem.target, problem.empty_features, problem.block_columns,
                   problem.rows_hint);
}

std::shared_ptr<const cpu::PairProgram> pair_program(const PairCall& call, Context& context) {
  LastProgram& last = call.formula().last_program;
  const LastProgram::Problem sought{&context.state(), call.type(), context.target(), call.features() == 0,
                                    std::min(call.rows(), plan::kManyRows)};
  if (auto program = last.find(sought)) return program;
  plan::PairProblem problem = pair_problem(call, context);
  auto program = context.state().pairs.get(key_of(call.formula().key, problem), [&] {
    problem.outputs = {call.formula().expression};
    return std::make_shared<const cpu::PairProgram>(dumped(plan::plan_pairs(problem)));
  });
  last.keep(sought, program);
  return program;
}

void for_each_group(std::int64_t groups, Context& context, const Arguments& arguments,
                    const std::function<void(std::int64_t, const cpu::RunOptions&)>& body) {
  Pool& pool = context.state().pool;
  const Pool::Progress* progress = arguments.progress ? &arguments.progress : nullptr;
  const auto options = [&](const Pool::Progress* asked) {
    return cpu::RunOptions(&pool, asked, context.state().least_gain, &context.state().maxima_tiles);
  };
  if (groups == 1) return body(0, options(progress));
  if (groups >= 2 * pool.threads()) {
    // A run inside a task is executed inline by that task's thread.
    pool.run(groups, [&](std::int64_t group, int) { body(group, options(nullptr)); }, progress);
    return;
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    Pool::Progress scaled = [&](double done, double total) {
      return (*progress)(static_cast<double>(group) + (total > 0 ? done / total : 1), static_cast<double>(groups));
    };
    body(group, options(progress ? &scaled : nullptr));
  }
}

}  // namespace mercer::ops
