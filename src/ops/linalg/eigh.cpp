// Eigenvalues and eigenvectors of symmetric matrices.
#include "core/error.h"
#include "ops/linalg/call.h"

namespace mercer {

std::int64_t ops::check_subset(const DenseCall& call, const std::optional<linalg::Subset>& subset) {
  const std::int64_t n = call.order();
  if (!subset) return n;
  require(subset->first >= 0 && subset->first <= subset->second && subset->second < n,
          "{}: subset_by_index must be (first, last), 0 <= first <= last < {}. Received ({}, {}).", call.op(), n,
          subset->first, subset->second);
  return subset->second - subset->first + 1;
}

namespace linalg {

using ops::DenseCall;
using ops::Failure;

void eigh(const Tensor& a, const Tensor& w, const Tensor* v, const std::optional<Subset>& subset,
          const Options& options, Context& context) {
  DenseCall call("eigh", "a", a, options);
  const std::int64_t n = call.order(), count = ops::check_subset(call, subset);
  const std::int64_t first = subset ? subset->first : 0;
  ops::Shape expected = call.a_batch();
  expected.push_back(count);
  call.output("w", w, call.type(), expected);
  expected.insert(expected.end() - 1, n);
  if (v != nullptr) call.output("v", *v, call.type(), expected, &a);
  const bool v_is_a = v != nullptr && v->count() > 0 && v->data == a.data;
  const bool overwrite_a = v_is_a || call.overwrites_a();
  const auto vectors = [&] { return v != nullptr ? call.array(*v, 2) : DenseArray{}; };
  const auto on_cpu = [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
    if (count == n && n > tools.lapack.largest_syevd())
      fail(ErrorKind::unsupported,
           "{}: this LAPACK, whose integers have 32 bits ({}), serves orders up to {}. Received {}.", call.op(),
           tools.lapack.file(), tools.lapack.largest_syevd(), n);
    cpu::eigh(job, call.a(), call.array(w, 1), vectors(), info, first, overwrite_a, tools);
  };
  call.run(Failure::no_convergence, context, on_cpu, [&](const DenseJob& job, const cuda::DenseInfo& info) {
    cuda::eigh(job, call.a(), call.array(w, 1), vectors(), info, first, overwrite_a);
  });
}

}  // namespace linalg
}  // namespace mercer
