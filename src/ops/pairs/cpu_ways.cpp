#include "ops/pairs/cpu_ways.h"

#include <algorithm>

#include "backend/cpu/pairs/byte_pairs.h"
#include "backend/cpu/pairs/digit_pairs.h"
#include "backend/cpu/pairs/gemm.h"
#include "backend/cpu/pairs/smallest.h"
#include "backend/cpu/pairs/tile_mask.h"
#include "core/system/amx.h"
#include "plan/promotion.h"

namespace mercer::ops {
namespace {

template <class T>
void multiply_item(const cpu::PairItem& item, std::int64_t chunk, const cpu::OutputMatrix& out,
                   const cpu::RunOptions& run) {
  const Lapack& library = *lapack();
  AlignedBuffer x, z;
  cpu::multiply(library, cpu::as_rows<T>(item.x, library.largest_size(), x),
                cpu::as_rows<T>(item.z, library.largest_size(), z), true, chunk, out, run);
}

template <class T>
void multiply_values(const cpu::RowMatrix<T>& values, const cpu::ProductMember& member, std::int64_t columns,
                     const cpu::OutputMatrix& out, const cpu::RunOptions& run) {
  const Lapack& library = *lapack();
  cpu::Points v;
  v.data = member.v;
  v.dtype = member.v_dtype;
  v.count = values.cols;
  v.features = columns;
  v.point_stride = member.v_row_stride;
  v.feature_stride = member.v_col_stride;
  AlignedBuffer own;
  const std::int64_t chunk = sizeof(T) == 8 ? values.cols : plan::kLongestChunk;
  cpu::multiply(library, values, cpu::as_rows<T>(v, library.largest_size(), own), false, chunk, out, run);
}

Tensor tensor_of(const cpu::Points& points) {
  return {const_cast<void*>(points.data), points.dtype, {points.count, points.features},
          {points.point_stride, points.feature_stride}};
}
std::optional<Tensor> user_of(const cpu::Points& points) {
  if (points.user.data == nullptr) return std::nullopt;
  return Tensor(const_cast<void*>(points.user.data), points.user.dtype, {points.count}, {points.user.stride});
}

/// The part of an item's pairs that no mask knows. All pairs count where items of a batch have masks of their own.
double computed_part(const PairCall& call, const plan::PairPlan& plan) {
  if (!plan.mask || call.m() == 0 || call.n() == 0) return 1;
  if (!cpu::mask_pays(call.m(), call.n(), call.features(), plan::kLeastGain)) return 1;
  if (plan.mask.reads(ir::Op::param) && !call.items_are_alike()) return 1;
  const cpu::PairItem item = call.item(0);
  return plan.mask.computed_part(item.x.index_offset, item.x.count, item.z.index_offset, item.z.count,
                                 call.values(0, plan.general.split.params), call.features());
}

}  // namespace

plan::cpu::Request cpu_request(const PairCall& call, const cpu::PairProgram& program, plan::Verb verb) {
  plan::cpu::Request request;
  request.verb = verb;
  plan::cpu::set_sides(request, call.m(), call.n());
  request.k = call.features();
  request.type = call.type();
  request.has_bytes = plan::cpu::is_of_bytes(call.dtype());
  request.symmetric = call.symmetric();
  const Lapack* const library = lapack();
  request.has_blas =
      library != nullptr && std::max({request.m, request.n, request.k}) <= library->largest_size();
  // The variable is not read for calls that have too few features for the way.
  request.has_amx = request.k > plan::cpu::kOrderedFeatures && may_use_amx(program.plan().problem.target);
  request.computed = computed_part(call, program.plan());
  return request;
}

bool may_use_amx(Target target) { return target == Target::x86_avx512 && has_amx(); }

const plan::cpu::Way& choose_cpu_way(const plan::cpu::Request& request, const cpu::PairProgram& program,
                                     Context& context) {
  const Context::State& state = context.state();
  return plan::cpu::choose(request, program.forms, state.way_costs(program.plan().problem.target),
                           *state.forced_ways.load());
}

cpu::OutputMatrix BatchOutput::of(const PairCall& call, std::int64_t index) const {
  cpu::OutputMatrix out = first;
  out.data = static_cast<char*>(out.data) + call.offset(index, strides) * static_cast<std::int64_t>(size_of(out.dtype));
  return out;
}

void run_few_points(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                    const Arguments& arguments) {
  const auto job_of = [&](std::int64_t index) {
    cpu::FewPointsJob job;
    job.item = call.item(index);
    job.params = call.values(index, program.plan().general.split.params);
    job.out = out.of(call, index);
    return job;
  };
  if (!call.items_are_alike())
    return for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
      cpu::few_points(program, job_of(index), run);
    });
  cpu::FewPointsJob job = job_of(0);
  job.items = call.items();
  job.batch = call.batch();
  job.x_strides = call.item_strides(true);
  job.z_strides = call.item_strides(false);
  job.out_strides = out.strides;
  for_each_group(1, context, arguments,
                 [&](std::int64_t, const cpu::RunOptions& run) { cpu::few_points(program, job, run); });
}

void run_byte_sums(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                   const Arguments& arguments) {
  for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    const cpu::PairMember member{call.values(index, program.plan().general.split.params), out.of(call, index)};
    cpu::byte_pairs(program, call.item(index), member, run);
  });
}

void run_amx_digits(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                    const Arguments& arguments) {
  const bool by_amx = may_use_amx(program.plan().problem.target);
  for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    const cpu::PairMember member{call.values(index, program.plan().general.split.params), out.of(call, index)};
    cpu::digit_pairs(program, call.item(index), member, by_amx, run);
  });
}

void run_gemm(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
              const Arguments& arguments) {
  const std::int64_t chunk = program.plan().chunk(call.features());
  // Not by tasks of a pool: a piece sets the threads of OpenBLAS.
  for_each_group(1, context, arguments, [&](std::int64_t, const cpu::RunOptions& run) {
    for (std::int64_t index = 0; index < call.items(); ++index) {
      const cpu::PairItem item = call.item(index);
      if (call.type() == Dtype::float64) multiply_item<double>(item, chunk, out.of(call, index), run);
      else multiply_item<float>(item, chunk, out.of(call, index), run);
    }
  });
}

namespace {

/// Values of one item, some rows at a time, by the best way of pairwise: body(values [rows][points], rows, the first
/// row). The sides of the call are in turn.
template <class Body>
void for_each_part(const PairCall& call, const Formula& f, std::int64_t index, const Arguments& arguments,
                   Context& context, const Body& body) {
  const cpu::PairItem item = call.item(index);
  const Tensor z = tensor_of(item.x);
  const std::int64_t points = item.x.count, all = item.z.count;
  const std::int64_t row_bytes = points * static_cast<std::int64_t>(size_of(call.type()));
  const std::int64_t part = std::clamp<std::int64_t>(plan::cpu::kValueBytes / row_bytes, 1, all);
  const AlignedBuffer memory(checked_product({part, row_bytes}));
  Arguments own = arguments;
  own.progress = nullptr;
  own.col = user_of(item.x);
  for (auto& [name, value] : own.params)
    if (std::holds_alternative<Tensor>(value)) value = call.number(index, name);
  for (std::int64_t first = 0; first < all; first += part) {
    cpu::Points rows = item.z;
    rows.count = std::min(part, all - first);
    rows.data = static_cast<const char*>(rows.data) +
                first * rows.point_stride * static_cast<std::int64_t>(size_of(rows.dtype));
    if (rows.user.data != nullptr)
      rows.user.data = static_cast<const char*>(rows.user.data) +
                       first * rows.user.stride * static_cast<std::int64_t>(size_of(rows.user.dtype));
    own.i_offset = arguments.i_offset + first;
    own.row = user_of(rows);
    const bool is_one_set = part == all && call.symmetric();
    pairwise(f, tensor_of(rows), is_one_set ? nullptr : &z, {memory.data(), call.type(), {rows.count, points}}, own,
             context);
    for_each_group(1, context, own, [&](std::int64_t, const cpu::RunOptions& run) {
      if (call.type() == Dtype::float64)
        body(cpu::RowMatrix<double>{memory.as<double>(), rows.count, points, points}, first, run);
      else body(cpu::RowMatrix<float>{memory.as<float>(), rows.count, points, points}, first, run);
    });
    const double done = static_cast<double>(first + rows.count) / static_cast<double>(all);
    if (arguments.progress &&
        !arguments.progress(static_cast<double>(index) + done, static_cast<double>(call.items())))
      throw Cancelled();
  }
}

/// The rows from this one on.
cpu::OutputMatrix rows_from(cpu::OutputMatrix out, std::int64_t first) {
  out.data = static_cast<char*>(out.data) + first * out.row_stride * static_cast<std::int64_t>(size_of(out.dtype));
  return out;
}

}  // namespace

void run_stored_product(const PairCall& call, const Formula& f, std::int64_t index, const cpu::ProductMember& member,
                        std::int64_t columns, const Arguments& arguments, Context& context) {
  for_each_part(call, f, index, arguments, context, [&](const auto& values, std::int64_t first, const auto& run) {
    multiply_values(values, member, columns, rows_from(member.out, first), run);
  });
}

void run_stored_nearest(const PairCall& call, const Formula& f, std::int64_t index, std::int64_t k,
                        const cpu::OutputMatrix& values, const cpu::OutputMatrix& indices, const Arguments& arguments,
                        Context& context) {
  for_each_part(call, f, index, arguments, context, [&](const auto& rows, std::int64_t first, const auto& run) {
    cpu::smallest(rows, k, rows_from(values, first), rows_from(indices, first), run);
  });
}

}  // namespace mercer::ops
