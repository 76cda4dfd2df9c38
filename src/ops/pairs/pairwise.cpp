#include "mercer/pairwise.h"

#include <cstring>
#include <map>

#include "core/dtype_error.h"
#include "core/error.h"
#include "ops/call/call.h"
#include "ops/gpu/cuda_call.h"
#include "ops/pairs/cpu_ways.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

/// Batch items that differ only in what the epilogue reads share one accumulation.
struct Group {
  std::int64_t first_item = 0;
  std::vector<std::int64_t> items;
};

std::vector<Group> make_groups(const PairCall& call, const plan::PairPlan& plan) {
  if (call.items() == 1) return {{0, {0}}};
  std::vector<Group> groups;
  std::map<std::vector<std::uint64_t>, std::size_t> known;
  for (std::int64_t index = 0; index < call.items(); ++index) {
    const cpu::PairItem item = call.item(index);
    std::vector<std::uint64_t> key;
    for (const void* p : {item.x.data, item.z.data, item.x.user.data, item.z.user.data})
      key.push_back(reinterpret_cast<std::uintptr_t>(p));
    for (double value : call.values(index, plan.accumulation_params)) {
      key.emplace_back();
      std::memcpy(&key.back(), &value, sizeof value);
    }
    const auto [at, fresh] = known.emplace(std::move(key), groups.size());
    if (fresh) groups.push_back({index, {}});
    groups[at->second].items.push_back(index);
  }
  return groups;
}

/// Columns contiguous and rows not: the transposed problem writes contiguous rows.
bool is_column_major(const Tensor& out) {
  const bool is_matrix = out.ndim() >= 2 && out.strides.size() == out.shape.size();
  return is_matrix && out.strides[out.ndim() - 2] == 1 && out.strides.back() != 1;
}

void check_dtype(const char* op, const Tensor& out, Dtype type) {
  const bool narrow = type == Dtype::float32 && (out.dtype == Dtype::float16 || out.dtype == Dtype::bfloat16);
  require_dtype(out.dtype == type || narrow, "{}: out must be {}{}. Received {}.", op, name_of(type),
                type == Dtype::float32 ? ", float16 or bfloat16" : "", name_of(out.dtype));
}

}  // namespace

std::vector<std::int64_t> batch_shape(const Formula& f, const Tensor& x, const Tensor& z, const Arguments& arguments) {
  return PairCall("batch_shape", f, x, &z, arguments, false).batch();
}

std::int64_t workspace_size(const Arguments& arguments, const std::function<void(const Arguments&)>& call) {
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace};
  Arguments own = arguments;
  own.queue.rehearsal = &rehearsal;
  call(own);
  return rehearsal.bytes;
}

void pairwise(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& out, const Arguments& arguments,
              Context& context) {
  bool swap = is_column_major(out);
  PairCall call("pairwise", f, x, z, arguments, swap);
  Shape expected = call.batch();
  expected.insert(expected.end(), {call.m(), call.n()});
  check_dtype(call.op(), out, call.type());
  ops::check_output(call.op(), out, expected, call.inputs());
  if (call.ends_checked(out)) return;
  const Shape out_strides = ops::batch_strides(out, 2, call.batch());
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    plan::Request request = ops::request_of(call, job, plan::Verb::pairwise, context);
    request.out = out.dtype;
    const plan::Choice way = ops::choose_way(call, job, request, context);
    const auto kernels =
        ops::cuda_kernels(call, job, way.offer.pairs(), out.dtype, context, cuda::FirstCall::on_bare_sums);
    const std::int64_t row = out.strides[out.ndim() - 2], col = out.strides.back();
    return cuda::pairwise(*kernels, job, {out.data, out.dtype, swap ? col : row, swap ? row : col, out_strides},
                          call.symmetric());
  }
  const std::int64_t rows = swap ? call.n() : call.m(), cols = swap ? call.m() : call.n();
  if (plan::cpu::swaps_sides(rows, cols)) {
    call.swap_sides();
    swap = !swap;
  }
  const auto program = ops::pair_program(call, context);
  const std::int64_t row = out.strides[out.ndim() - 2], col = out.strides.back();
  const plan::cpu::Way& way =
      ops::choose_cpu_way(ops::cpu_request(call, *program, plan::Verb::pairwise), *program, context);
  if (&way == &plan::cpu::kGemm && swap != plan::cpu::swaps_sides(call.m(), call.n())) {
    call.swap_sides();  // OpenBLAS gives x z^T and z x^T other bits, and the layout of out must not decide
    swap = !swap;
  }
  const cpu::OutputMatrix first{out.data, out.dtype, swap ? col : row, swap ? row : col};
  const ops::BatchOutput of_batch{first, out_strides};
  if (&way == &plan::cpu::kFewPoints) return ops::run_few_points(call, *program, of_batch, context, arguments);
  if (&way == &plan::cpu::kByteSums) return ops::run_byte_sums(call, *program, of_batch, context, arguments);
  if (&way == &plan::cpu::kAmxDigits) return ops::run_amx_digits(call, *program, of_batch, context, arguments);
  if (&way == &plan::cpu::kGemm) return ops::run_gemm(call, *program, of_batch, context, arguments);
  const bool halves = &way == &plan::cpu::kPackedHalves;
  const std::vector<Group> groups = make_groups(call, program->plan());
  ops::for_each_group(static_cast<std::int64_t>(groups.size()), context, arguments,
                      [&](std::int64_t g, const cpu::RunOptions& run) {
    std::vector<cpu::PairMember> members;
    for (std::int64_t index : groups[g].items) {
      cpu::PairMember member;
      member.params = call.values(index, program->plan().general.split.params);
      member.out = of_batch.of(call, index);
      members.push_back(std::move(member));
    }
    cpu::pairwise(*program, call.item(groups[g].first_item), members, halves, run);
  });
}

}  // namespace mercer
