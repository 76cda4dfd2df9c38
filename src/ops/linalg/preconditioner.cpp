// What preconditioners of low rank do: P^-1, P^(1/2), the determinant, the diagonal, other ridges, weights of points.
#include <cmath>
#include <numeric>

#include "backend/cpu/linalg/dense_matrix.h"
#include "backend/cuda/gemm/device_blas.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "ops/linalg/approximation.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

constexpr const char* kOp = "Preconditioner";

/// Calls body with a value of the type, float or double.
template <class Body>
void with_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::float64)
    body(double{});
  else
    body(float{});
}

Tensor as_columns(Tensor t) {
  if (t.ndim() == 1) {
    t.shape.push_back(1);
    t.strides.push_back(1);
  }
  return t;
}

/// Neighbouring elements along columns, which follow each other.
Tensor packed_like(const Tensor& t, void* memory) {
  Tensor packed(memory, t.dtype, t.shape, {1, t.shape[0]});
  packed.device = t.device;
  return packed;
}

std::int64_t bytes_of(const Tensor& t) {
  return checked_product({t.count(), static_cast<std::int64_t>(size_of(t.dtype))});
}

void apply_on_cpu(const LowRankMap& map, const Tensor& v, const Tensor& out) {
  const AlignedBuffer from(bytes_of(v)), to(bytes_of(v));
  const Tensor packed = packed_like(v, from.as<char>()), found = packed_like(v, to.as<char>());
  with_type(v.dtype, [&](auto type) {
    using T = decltype(type);
    cpu::copy(ops::as_matrix<T>(v), ops::as_matrix<T>(packed));
    map.apply(packed, found, {});
    cpu::copy(ops::as_matrix<T>(found), ops::as_matrix<T>(out));
  });
}

/// Nothing waits, so that a graph may capture it; kernels are there before anything is recorded.
void apply_on_cuda(const LowRankMap& map, const Tensor& v, const Tensor& out, Queue queue) {
  queue.allocate = {};
  const cuda::PairJob place = cuda::place_of(kOp, v.device, queue, v.dtype);
  const CudaScope scope(v.device.index);
  const cuda::Kernel moves = cuda::dense_kernels(place);
  for (const auto& find : {cuda::few_columns_kernels, cuda::low_rank_kernels}) find(place);
  cuda::Workspace memory;
  const std::int64_t from = memory.add(bytes_of(v)), to = memory.add(bytes_of(v));
  memory.take(place);
  const Tensor packed = packed_like(v, memory.at(from)), found = packed_like(v, memory.at(to));
  cuda::move_dense(moves, place, v, packed);
  map.apply(packed, found, queue);
  cuda::move_dense(moves, place, found, out);
}

const LowRankParts& need_parts(const Preconditioner& p) {
  require(p.parts != nullptr, "{}: it must come from rpcholesky, nystrom or pivoted_cholesky. Received another one.",
          kOp);
  return *p.parts;
}

/// out = map v for arrays of any strides.
void apply(const Preconditioner& p, const LowRankParts::KeptMap& kept, const Tensor& v, const Tensor& out,
           const Queue& queue) {
  const Operator shape{p.order, p.dtype, {}, p.device};
  require(v.ndim() == 1 || v.ndim() == 2, "{}: v must have the shape [n, k] or [n]. Received {}.", kOp,
          ops::text_of(v.shape));
  ops::Shape expected = v.shape;
  expected[0] = p.order;
  if (p.columns > 0 && v.ndim() == 2) expected[1] = p.columns;
  ops::check_operand(kOp, "v", v, expected, shape);
  ops::check_operand(kOp, "out", out, expected, shape);
  require(p.columns == 0 || v.ndim() == 2 || p.columns == 1,
          "{}: v must have one column for each of the {} ridges. Received {}.", kOp, p.columns, ops::text_of(v.shape));
  require(v.count() == 0 || (!ops::overlaps_itself(out) && (ops::same_view(v, out) || !ops::overlap(v, out))),
          "{}: out must not overlap v, unless it is the same view, or itself. Received {} and {}.", kOp, out, v);
  if (v.count() == 0) return;
  const LowRankMap& map = p.parts->map(kept, kOp, queue);
  if (p.device.kind == DeviceKind::cuda)
    apply_on_cuda(map, as_columns(v), as_columns(out), queue);
  else
    apply_on_cpu(map, as_columns(v), as_columns(out));
}

/// Weights as functions of 1 - w.
LowRankWeights weights_of(const LowRankParts& parts, double (*weight)(double), double (*scale)(double)) {
  LowRankWeights made;
  const auto rank = static_cast<std::size_t>(parts.columns->columns().shape[1]);
  for (const double ridge : parts.ridges) {
    std::vector<double> own(rank, 0);
    for (std::size_t j = 0; j < parts.values.size(); ++j) own[j] = weight(parts.kept(parts.values[j], ridge));
    made.weights.insert(made.weights.end(), own.begin(), own.end());
    made.scales.push_back(scale(parts.outside(ridge)));
  }
  return made;
}

/// The target of Preconditioner::apply, or of its apply_in.
std::function<void(const Tensor&, const Tensor&, const Queue&)> inverse_of(
    std::shared_ptr<const LowRankParts> parts, std::int64_t columns,
    void (LowRankMap::*work)(const Tensor&, const Tensor&, const Queue&) const) {
  if (parts->columns == nullptr) return [](const Tensor&, const Tensor&, const Queue&) {};
  return [parts = std::move(parts), columns, work](const Tensor& r, const Tensor& out, const Queue& queue) {
    require(columns == 0 || r.shape[1] == columns,
            "{}: a preconditioner with a ridge for each column must get {} columns. Received {}.", kOp, columns,
            r.shape[1]);
    (parts->map(parts->inverse_map, kOp, queue).*work)(r, out, queue);
  };
}

/// to = values of the host, columns one after another.
void write(const std::vector<double>& values, const Tensor& to, Queue queue) {
  with_type(to.dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<T> narrow(values.begin(), values.end());
    if (to.device.kind == DeviceKind::cpu) {
      cpu::copy(cpu::packed_columns(narrow.data(), to.shape[0], to.shape[1]), ops::as_matrix<T>(to));
      return;
    }
    queue.allocate = {};
    const cuda::DeviceBlas blas(kOp, to.device, queue, to.dtype);
    cuda::Workspace memory;
    const std::int64_t place = memory.add(bytes_of(to));
    memory.take(blas.place());
    blas.upload(memory.at(place), narrow.data(), narrow.size() * sizeof(T));
    blas.move(packed_like(to, memory.at(place)), to);
    blas.wait();
  });
}

/// Roots of the weights, on the host.
std::vector<double> roots_of(const Preconditioner& p, const Tensor& w, Queue queue) {
  const Operator shape{p.order, p.dtype, {}, p.device};
  ops::check_operand(kOp, "w", w, {p.order}, shape);
  std::vector<double> roots(static_cast<std::size_t>(p.order));
  with_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<T> values(roots.size());
    if (p.device.kind == DeviceKind::cuda) {
      queue.allocate = {};
      const cuda::DeviceBlas blas(kOp, w.device, queue, w.dtype);
      cuda::Workspace memory;
      const Tensor column = as_columns(w);
      const std::int64_t place = memory.add(bytes_of(w));
      memory.take(blas.place());
      blas.move(column, packed_like(column, memory.at(place)));
      blas.copy(values.data(), memory.at(place), values.size() * sizeof(T));
      blas.wait();
    } else {
      for (std::int64_t i = 0; i < p.order; ++i) values[i] = static_cast<const T*>(w.data)[i * w.strides[0]];
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      require(values[i] >= 0 && std::isfinite(values[i]), "{}: weights must be from 0 on and finite. Received {}.",
              kOp, double(values[i]));
      roots[i] = std::sqrt(double(values[i]));
    }
  });
  return roots;
}

}  // namespace

LowRankWeights LowRankParts::inverse() const {
  return weights_of(*this, [](double kept) { return 1 - kept; }, [](double outside) { return 1 / outside; });
}

// (1 - U w U^T)^(-1/2) = 1 - U (1 - (1 - w)^(-1/2)) U^T.
LowRankWeights LowRankParts::root() const {
  return weights_of(*this, [](double kept) { return 1 - 1 / std::sqrt(kept); },
                    [](double outside) { return std::sqrt(outside); });
}

const LowRankMap& LowRankParts::map(const KeptMap& kept, const char* op, const Queue& queue) const {
  return kept.made.get([&] {
    const Device device = columns->columns().device;
    const bool is_captured =
        device.kind == DeviceKind::cuda && cuda_is_capturing(device.index, static_cast<CuStream>(queue.stream));
    require(!is_captured,
            "{}: a preconditioner puts numbers on its device when it first serves; call once before a CUDA graph is "
            "captured. Received a capturing stream.",
            op);
    return columns->map((this->*kept.weights)(), queue);
  });
}

Preconditioner preconditioner_of(LowRankParts parts, std::int64_t order, Dtype dtype, Device device) {
  Preconditioner made{order, static_cast<std::int64_t>(parts.values.size()), dtype, device};
  made.columns = parts.ridges.size() == 1 ? 0 : static_cast<std::int64_t>(parts.ridges.size());
  const auto kept = std::make_shared<const LowRankParts>(std::move(parts));
  made.apply = inverse_of(kept, made.columns, &LowRankMap::apply);
  made.apply_in = inverse_of(kept, made.columns, &LowRankMap::apply_in);
  made.parts = kept;
  return made;
}

void Preconditioner::solve(const Tensor& v, const Tensor& out, const Queue& queue) const {
  linalg::apply(*this, need_parts(*this).inverse_map, v, out, queue);
}

void Preconditioner::multiply_root(const Tensor& v, const Tensor& out, const Queue& queue) const {
  linalg::apply(*this, need_parts(*this).root_map, v, out, queue);
}

std::vector<double> Preconditioner::logdet() const {
  const LowRankParts& own = need_parts(*this);
  std::vector<double> found;
  for (const double ridge : own.ridges) {
    double sum = order > 0 ? double(order) * std::log(own.outside(ridge)) : 0;
    for (const double value : own.values) sum -= std::log(own.kept(value, ridge));
    found.push_back(sum);
  }
  return found;
}

void Preconditioner::diagonal(const Tensor& out, const Queue& queue) const {
  const LowRankParts& own = need_parts(*this);
  const ops::Shape expected = columns > 0 ? ops::Shape{order, columns} : ops::Shape{order};
  ops::check_operand(kOp, "out", out, expected, {order, dtype, {}, device});
  require(out.count() == 0 || !ops::overlaps_itself(out), "{}: no two elements of out may share memory. Received {}.",
          kOp, out);
  std::vector<double> found;
  for (const double ridge : own.ridges) {
    if (order == 0) return;
    std::vector<double> above(static_cast<std::size_t>(own.columns->columns().shape[1]), 0);
    for (std::size_t j = 0; j < own.values.size(); ++j) {
      const double kept = own.kept(own.values[j], ridge);
      above[j] = (1 - kept) / kept;
    }
    for (const double sum : own.columns->row_squares(above, queue)) found.push_back(own.outside(ridge) * (1 + sum));
  }
  write(found, as_columns(out), queue);
}

const std::vector<double>& Preconditioner::ridges() const { return need_parts(*this).ridges; }

Preconditioner Preconditioner::with_ridges(std::vector<double> ridges) const {
  LowRankParts own = need_parts(*this);
  require(!ridges.empty(), "{}: there must be one ridge, or one for each column. Received none.", kOp);
  for (const double ridge : ridges)
    if (!own.is_relative || ridge != 0) require_ridge(kOp, ridge, dtype);
  own.ridges = std::move(ridges);
  return preconditioner_of(std::move(own), order, dtype, device);
}

Preconditioner Preconditioner::weighted(const Tensor& w, const Queue& queue, Context& context) const {
  const LowRankParts& own = need_parts(*this);
  const std::vector<double> roots = roots_of(*this, w, queue);
  if (order == 0) return *this;
  const Operator shape{order, dtype, {}, device, queue};
  std::vector<double> lengths(static_cast<std::size_t>(own.columns->columns().shape[1]), 0);
  for (std::size_t j = 0; j < own.values.size(); ++j) lengths[j] = std::sqrt(std::max(own.values[j], 0.0));
  const auto count = static_cast<std::int64_t>(lengths.size());
  Approximation approximation(kOp, shape, count, count, 0, context);
  own.columns->scaled(roots, lengths, approximation.basis().basis(0, count), queue);
  return approximation.finish(own.values.empty() ? 0 : count, {.ridges = own.ridges, .is_relative = own.is_relative});
}

}  // namespace mercer::linalg
