// Operations that fold the pairs over n without storing them: product, reductions, nearest neighbours. They run the
// formula with its sides swapped, so that the points that stay lie along the vectors.
#include <fmt/format.h>

#include "core/dtype_error.h"
#include "core/error.h"
#include "mercer/pairwise.h"
#include "ops/call/call.h"
#include "ops/gpu/cuda_call.h"
#include "ops/pairs/cpu_ways.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

struct FoldRow {
  ReduceKind kind;
  cpu::Fold fold;
  const char* name;
};

/// The rows are in the order of ReduceKind.
constexpr FoldRow kFolds[] = {
    {ReduceKind::sum, cpu::Fold::sum, "sum"},          {ReduceKind::max, cpu::Fold::max, "max"},
    {ReduceKind::min, cpu::Fold::min, "min"},          {ReduceKind::argmax, cpu::Fold::argmax, "argmax"},
    {ReduceKind::argmin, cpu::Fold::argmin, "argmin"}, {ReduceKind::logsumexp, cpu::Fold::logsumexp, "logsumexp"},
};

bool is_index(ReduceKind kind) { return kind == ReduceKind::argmax || kind == ReduceKind::argmin; }

/// The CPU runs the formula with its sides swapped.
bool on_cpu(const Tensor& x) { return x.device.kind == DeviceKind::cpu; }

ir::LowerOptions options_of(Dtype type) {
  ir::LowerOptions options;
  options.type = type;
  return options;
}

/// The kernels below depend on the tile alone.
std::string tile_key(const plan::PairProblem& problem, int rows, int cols) {
  return fmt::format("{}|{}|{}x{}", static_cast<int>(problem.target), static_cast<int>(problem.type), rows, cols);
}

/// A dot product over n on the columns of a pair tile: the kernel behind matrix-free products.
std::shared_ptr<const jit::UpdateKernel> dot_kernel(const plan::PairPlan& pairs, int height, Context& context) {
  const std::string key = tile_key(pairs.problem, height, pairs.tile.cols());
  return context.state().dots.get(key, [&]() -> std::shared_ptr<const jit::UpdateKernel> {
    const Expr update = ir::leaf(ir::Op::accumulator, 0) + points().x * points().z;
    plan::UpdateSource source;
    source.target = pairs.problem.target;
    source.tile = {height, pairs.tile.vectors, pairs.tile.lanes};
    source.program = ir::lower({update}, options_of(pairs.problem.type));
    source.promoted = {true};
    return jit::compile(source);
  });
}

/// exp(P - shift[m]) on the tile of a plan.
std::shared_ptr<const jit::EpilogueKernel> exponential_kernel(const plan::PairPlan& pairs, Context& context) {
  const std::string key = tile_key(pairs.problem, pairs.tile.rows, pairs.tile.cols());
  return context.state().exponentials.get(key, [&]() -> std::shared_ptr<const jit::EpilogueKernel> {
    const Expr value = exp(ir::leaf(ir::Op::accumulator, 0) - col_value());
    plan::EpilogueSource source;
    source.target = pairs.problem.target;
    source.tile = pairs.tile;
    source.program = ir::lower({value}, options_of(pairs.problem.type));
    return jit::compile(source);
  });
}

}  // namespace

const char* name_of(ReduceKind kind) { return kFolds[static_cast<int>(kind)].name; }

ReduceKind reduce_kind_from_text(const std::string& name) {
  for (const FoldRow& row : kFolds)
    if (name == row.name) return row.kind;
  fail(ErrorKind::invalid_argument,
       "kernel_reduce: reduce must be sum, max, min, argmax, argmin or logsumexp. Received \"{}\".", name);
}

void kernel_product(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, const Tensor& out,
                    const Arguments& arguments, Context& context) {
  const char* op = "kernel_product";
  ops::check_input(op, "v", v, 1);
  const bool single = v.ndim() == 1;
  const int trailing = single ? 1 : 2;
  const PairCall call(op, f, x, z, arguments, on_cpu(x), {ops::leading(v, trailing)});
  const std::int64_t points = v.shape[v.ndim() - trailing];
  require(points == call.n(), "{}: v must have one row per point of z ({}). Received shape {}.", op, call.n(),
          ops::text_of(v.shape));
  ops::check_device(op, "v", v, call.device());
  ops::check_computing_type(op, "v", v, call.type());
  ops::check_output_type(op, out, call.type());
  const std::int64_t columns = single ? 1 : v.shape.back();
  Shape expected = call.batch();
  expected.push_back(call.m());
  if (!single) expected.push_back(columns);
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.push_back(&v);
  ops::check_output(op, out, expected, inputs);
  if (call.ends_checked(out)) return;
  const Shape v_strides = ops::batch_strides(v, trailing, call.batch());
  const Shape out_strides = ops::batch_strides(out, trailing, call.batch());
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    plan::Request request = ops::request_of(call, job, plan::Verb::product, context);
    request.columns = columns;
    const plan::Choice way = ops::choose_way(call, job, request, context);
    const cuda::JobOperand operand{
        {v.data, v.dtype, v_strides}, v.strides[v.ndim() - trailing], single ? 0 : v.strides.back()};
    const cuda::JobMatrix sums{out.data, out.dtype, out.strides[out.ndim() - trailing],
                               single ? 0 : out.strides.back(), out_strides};
    if (const auto* stored = std::get_if<plan::StoredPlan>(&way.offer.plan))
      return ops::run_stored_product(call, job, *stored, operand, columns, sums, context);
    const auto kernels = ops::cuda_kernels(call, job, way.offer.pairs(), out.dtype, context);
    return cuda::product(*kernels, job, operand, columns, sums);
  }
  const auto program = ops::pair_program(call, context);
  const auto member_of = [&](std::int64_t index) {
    cpu::ProductMember member;
    member.params = call.values(index, program->plan().general.split.params);
    member.v = ops::element(v, call.offset(index, v_strides));
    member.v_dtype = v.dtype;
    member.v_row_stride = v.strides[v.ndim() - trailing];
    member.v_col_stride = single ? 0 : v.strides.back();
    member.out = {ops::element(out, call.offset(index, out_strides)), out.dtype, out.strides[out.ndim() - trailing],
                  single ? 1 : out.strides.back()};
    return member;
  };
  plan::cpu::Request request = ops::cpu_request(call, *program, plan::Verb::product);
  request.columns = columns;
  if (&ops::choose_cpu_way(request, *program, context) == &plan::cpu::kMaterialised) {
    for (std::int64_t index = 0; index < call.items(); ++index)
      ops::run_stored_product(call, f, index, member_of(index), columns, arguments, context);
    return;
  }
  // Columns of v are the rows of the product's tiles, as many as a pair tile has; a few columns get a lower tile.
  int height = 1;
  while (height < columns && height * 2 <= program->plan().tile.rows) height *= 2;
  const auto kernel = dot_kernel(program->plan(), height, context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::product(*program, call.item(index), {member_of(index)}, columns, *kernel, height, run);
  });
}

void kernel_reduce(const Formula& f, const Tensor& x, const Tensor* z, ReduceKind kind, const Tensor& out,
                   const Arguments& arguments, Context& context) {
  const char* op = "kernel_reduce";
  const PairCall call(op, f, x, z, arguments, on_cpu(x));
  const Dtype type = is_index(kind) ? Dtype::int64 : call.type();
  require_dtype(out.dtype == type, "{}: out must be {} for {}. Received {}.", op, name_of(type), name_of(kind),
                name_of(out.dtype));
  require(call.n() > 0 || kind == ReduceKind::sum || kind == ReduceKind::logsumexp,
          "{}: {} needs at least one point of z. Received none.", op, name_of(kind));
  Shape expected = call.batch();
  expected.push_back(call.m());
  ops::check_output(op, out, expected, call.inputs());
  if (call.ends_checked(out)) return;
  const Shape out_strides = ops::batch_strides(out, 1, call.batch());
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    plan::Request request = ops::request_of(call, job, plan::Verb::reduce, context);
    request.fold = kind;
    const plan::Choice way = ops::choose_way(call, job, request, context);
    const auto kernels = ops::cuda_kernels(call, job, way.offer.pairs(), out.dtype, context);
    return cuda::reduce(*kernels, job, {out.data, out.dtype, out.strides.back(), 0, out_strides});
  }
  const auto program = ops::pair_program(call, context);
  std::shared_ptr<const jit::EpilogueKernel> exponential;
  if (kind == ReduceKind::logsumexp) exponential = exponential_kernel(program->plan(), context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::PairMember member;
    member.params = call.values(index, program->plan().general.split.params);
    member.out = {ops::element(out, call.offset(index, out_strides)), out.dtype, out.strides.back(), 1};
    cpu::reduce(*program, call.item(index), member, kFolds[static_cast<int>(kind)].fold, exponential.get(), run);
  });
}

void knn(const Formula& f, const Tensor& x, const Tensor* z, std::int64_t k, const Tensor& values,
         const Tensor& indices, const Arguments& arguments, Context& context) {
  const char* op = "knn";
  const PairCall call(op, f, x, z, arguments, on_cpu(x));
  require(k >= 1 && k <= call.n(), "{}: k must be from 1 to the number of points of z ({}). Received {}.", op, call.n(),
          k);
  require_dtype(values.dtype == call.type(), "{}: values must be {}. Received {}.", op, name_of(call.type()),
                name_of(values.dtype));
  require_dtype(indices.dtype == Dtype::int64, "{}: indices must be int64. Received {}.", op, name_of(indices.dtype));
  Shape expected = call.batch();
  expected.insert(expected.end(), {call.m(), k});
  std::vector<const Tensor*> inputs = call.inputs();
  ops::check_output(op, values, expected, inputs);
  inputs.push_back(&values);
  ops::check_output(op, indices, expected, inputs);
  if (call.ends_checked(values)) return;
  const Shape value_strides = ops::batch_strides(values, 2, call.batch());
  const Shape index_strides = ops::batch_strides(indices, 2, call.batch());
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    plan::Request request = ops::request_of(call, job, plan::Verb::nearest, context);
    request.columns = k;
    const plan::Choice way = ops::choose_way(call, job, request, context);
    const auto kernels = ops::cuda_kernels(call, job, way.offer.pairs(), call.type(), context);
    const auto matrix = [](const Tensor& t, const Shape& strides) {
      return cuda::JobMatrix{t.data, t.dtype, t.strides[t.ndim() - 2], t.strides.back(), strides};
    };
    return cuda::nearest(*kernels, job, k, matrix(values, value_strides), matrix(indices, index_strides));
  }
  const auto program = ops::pair_program(call, context);
  auto matrix = [&](const Tensor& t, std::int64_t index, const Shape& strides) {
    return cpu::OutputMatrix{ops::element(t, call.offset(index, strides)), t.dtype, t.strides[t.ndim() - 2],
                             t.strides.back()};
  };
  plan::cpu::Request request = ops::cpu_request(call, *program, plan::Verb::nearest);
  request.columns = k;
  if (&ops::choose_cpu_way(request, *program, context) == &plan::cpu::kStoredNearest) {
    for (std::int64_t index = 0; index < call.items(); ++index)
      ops::run_stored_nearest(call, f, index, k, matrix(values, index, value_strides),
                              matrix(indices, index, index_strides), arguments, context);
    return;
  }
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::nearest(*program, call.item(index), call.values(index, program->plan().general.split.params), k,
                 matrix(values, index, value_strides), matrix(indices, index, index_strides), run);
  });
}

}  // namespace mercer
