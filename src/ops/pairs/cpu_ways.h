// Chooses the way that computes a call on CPUs (plan/cpu/ways.h).
#pragma once

#include "backend/cpu/pairs/few_points.h"
#include "ops/call/call.h"
#include "plan/cpu/ways.h"

namespace mercer::ops {

/// What each item of a call on CPUs asks, but for the columns of v.
plan::cpu::Request cpu_request(const PairCall& call, const cpu::PairProgram& program, plan::Verb verb);
/// Whether calls on a target may use AMX.
bool may_use_amx(Target target);
const plan::cpu::Way& choose_cpu_way(const plan::cpu::Request& request, const cpu::PairProgram& program,
                                     Context& context);

/// The output of a batch: its first item's, and strides along the axes of the batch.
struct BatchOutput {
  cpu::OutputMatrix first;
  const Shape& strides;
  cpu::OutputMatrix of(const PairCall& call, std::int64_t index) const;
};

/// The whole batch by few_points.
void run_few_points(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                    const Arguments& arguments);
/// The whole batch by byte_sums.
void run_byte_sums(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                   const Arguments& arguments);
/// The whole batch by amx_digits.
void run_amx_digits(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
                    const Arguments& arguments);
/// The whole batch by gemm.
void run_gemm(const PairCall& call, const cpu::PairProgram& program, const BatchOutput& out, Context& context,
              const Arguments& arguments);
/// One item of a product, by values that are stored some rows at a time. The sides of the call are in turn.
void run_stored_product(const PairCall& call, const Formula& f, std::int64_t index, const cpu::ProductMember& member,
                        std::int64_t columns, const Arguments& arguments, Context& context);

/// Likewise one item of knn.
void run_stored_nearest(const PairCall& call, const Formula& f, std::int64_t index, std::int64_t k,
                        const cpu::OutputMatrix& values, const cpu::OutputMatrix& indices, const Arguments& arguments,
                        Context& context);

}  // namespace mercer::ops
