// The products of mercer/compat/fastkron.h. A plain one is one call of mercer/kron.h. One that keeps what lies between
// its factors takes a call for each, from the last to the first: with X as rows of slices of P_i elements,
//
//   out[m, q * S + s] = sum over p of x[m, s * P_i + p] op(F_i)[p, q]        S slices
//
// which moves the axis of the factor to the front; after all factors the axes are in their order again.
#include "compat/fastkron_product.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "core/devices/cuda_driver.h"
#include "mercer/tune.h"
#include "ops/call/call.h"

namespace mercer::compat::fastkron {
namespace {

/// The most elements of an array: its bytes are counted in 63 bits.
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(double));

using Extents = std::span<const std::int64_t>;

/// m times all of them.
std::int64_t product_of(const char* op, std::int64_t m, Extents first, Extents second = {}) {
  std::int64_t product = m;
  bool fits = true;
  for (const Extents extents : {first, second})
    if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return 0;
  for (const Extents extents : {first, second})
    for (const std::int64_t extent : extents) fits = fits && !__builtin_mul_overflow(product, extent, &product);
  require_or(fastKronInvalidKMMProblem, fits && product <= kMost,
             "{}: the bytes of an array must be counted in 63 bits. Received M = {} and sizes of more.", op, m);
  return product;
}

std::vector<std::int64_t> widened(const std::uint32_t* sizes, std::uint32_t n) { return {sizes, sizes + n}; }

}  // namespace

Sizes::Sizes(const char* op, std::uint32_t m_given, std::uint32_t n, const std::uint32_t* ps, const std::uint32_t* qs)
    : m(m_given) {
  require_or(fastKronInvalidKMMProblem, n >= 1 && n <= kron::kMostFactors,
             "{}: there must be 1 to {} factors. Received N = {}.", op, kron::kMostFactors, n);
  require(ps != nullptr && qs != nullptr, "{}: Ps and Qs must be given. Received a null pointer.", op);
  p = widened(ps, n);
  q = widened(qs, n);
  const Extents all_p = p, all_q = q;
  for (std::size_t i = 0; i < n; ++i) {
    slices.push_back(product_of(op, 1, all_p.first(i), all_q.subspan(i + 1)));
    product_of(op, m, all_p.first(i), all_q.subspan(i));
    product_of(op, 1, all_p.subspan(i, 1), all_q.subspan(i, 1));
  }
  k = product_of(op, 1, all_p);
  l = product_of(op, 1, all_q);
  product_of(op, m, all_p);
}

Product::Product(const char* op, bool left, Handle& handle, fastKronBackend backend, Sizes sizes, Arrays arrays)
    : op_(op), left_(left), handle_(handle), sizes_(std::move(sizes)), arrays_(std::move(arrays)),
      on_cuda_(backend == fastKronBackend_CUDA), device_{on_cuda_ ? DeviceKind::cuda : DeviceKind::cpu, -1} {
  check_backend(op, handle, backend, fastKronInvalidArgument);
  if (!on_cuda_) device_.index = 0;
  check_arrays();
}

void Product::check_op(const char* name, fastKronOp op) const {
  require(op == fastKronOp_N || op == fastKronOp_T, "{}: {} must be fastKronOp_N or fastKronOp_T. Received {}.", op_,
          name, static_cast<unsigned>(op));
}

/// The first array decides on which device all must lie.
void Product::check_array(const char* name, const void* data, std::int64_t elements, std::uint64_t stride) {
  const std::int64_t steps = std::max<std::int64_t>(arrays_.batch - 1, 0);
  require(steps == 0 || stride <= static_cast<std::uint64_t>((kMost - elements) / steps),
          "{}: the batch of {} must end within 63 bits of bytes. Received a stride of {}.", op_, name, stride);
  if (elements == 0 || arrays_.batch == 0) return;
  require(data != nullptr, "{}: {} must be given. Received a null pointer.", op_, name);
  if (!on_cuda_) return;
  const int device = cuda_device_of(data);
  require_or(fastKronInvalidMemoryAccess, device >= 0,
             "{}: {} must lie on a CUDA device for fastKronBackend_CUDA. Received memory of the host.", op_, name);
  if (device_.index < 0) device_.index = device;
  require_or(fastKronInvalidMemoryAccess, device == device_.index,
             "{}: {} must lie on the device of Z, cuda:{}. Received one on cuda:{}.", op_, name, device_.index, device);
}

void Product::check_arrays() {
  check_op("opX", arrays_.x.op);
  check_op("opFs", arrays_.factor_op);
  require(arrays_.beta == 0 || arrays_.y.data != nullptr,
          "{}: Y must be given where beta is not 0. Received beta = {}.", op_, arrays_.beta);
  check_array("Z", arrays_.z.data, sizes_.m * sizes_.l, arrays_.z.stride);
  check_array("X", arrays_.x.data, sizes_.m * sizes_.k, arrays_.x.stride);
  if (arrays_.beta != 0) check_array("Y", arrays_.y.data, sizes_.m * sizes_.l, arrays_.y.stride);
  for (std::size_t i = 0; i < sizes_.count(); ++i) {
    const std::uint64_t stride = arrays_.factor_strides == nullptr ? 0 : arrays_.factor_strides[i];
    check_array("a factor of Fs", arrays_.factors[i], sizes_.p[i] * sizes_.q[i], stride);
  }
  device_.index = std::max(device_.index, 0);
}

Product::Laid Product::laid(const Matrix& matrix, std::int64_t columns) const {
  const std::int64_t rows = sizes_.m;
  const bool by_rows = (matrix.op == fastKronOp_N) != left_;  // of the matrix with rows of m, which KMM has transposed
  const std::uint64_t item = arrays_.batch > 1 ? matrix.stride : 0;
  return {const_cast<void*>(matrix.data), static_cast<std::int64_t>(item), by_rows ? columns : 1, by_rows ? 1 : rows};
}

/// A matrix as a whole: [M, columns], [columns, M] from the left, before it the batch.
Tensor Product::view(const Matrix& matrix, std::int64_t columns) const {
  const Laid at = laid(matrix, columns);
  Tensor t;
  t.data = at.data;
  t.dtype = arrays_.dtype;
  t.device = device_;
  t.shape = left_ ? std::vector{columns, sizes_.m} : std::vector{sizes_.m, columns};
  t.strides = left_ ? std::vector{at.column, at.row} : std::vector{at.row, at.column};
  if (arrays_.batch == 1) return t;
  t.shape.insert(t.shape.begin(), arrays_.batch);
  t.strides.insert(t.strides.begin(), at.item);
  return t;
}

/// op(F_i) after so many leading axes; the batch is the first of them, and absent where one factor serves all.
Tensor Product::factor(std::size_t i, int axes) const {
  const std::int64_t rows = left_ ? sizes_.q[i] : sizes_.p[i], columns = left_ ? sizes_.p[i] : sizes_.q[i];
  const bool by_rows = arrays_.factor_op == fastKronOp_N;
  Tensor t(const_cast<void*>(arrays_.factors[i]), arrays_.dtype, {rows, columns},
           {by_rows ? columns : 1, by_rows ? 1 : rows});
  t.device = device_;
  const auto stride = static_cast<std::int64_t>(arrays_.factor_strides == nullptr ? 0 : arrays_.factor_strides[i]);
  if (arrays_.batch <= 1 || stride == 0) return t;
  t.shape.insert(t.shape.begin(), static_cast<std::size_t>(axes), 1);
  t.strides.insert(t.strides.begin(), static_cast<std::size_t>(axes), 0);
  t.shape.front() = arrays_.batch;
  t.strides.front() = stride;
  return t;
}

kron::Options Product::options() const {
  kron::Options options;
  options.verb = op_;
  if (on_cuda_) options.queue.stream = handle_.stream;
  return options;
}

void Product::multiply(const std::vector<Tensor>& factors, const Tensor& x, const Tensor& out,
                       const kron::Options& options) const {
  if (left_) kron::kron_matmul(factors, x, out, options);
  else kron::matmul(x, factors, out, options);
}

void Product::run() {
  const Tensor x = view(arrays_.x, sizes_.k), y = view(arrays_.y, sizes_.l), z = view(arrays_.z, sizes_.l);
  std::vector<Tensor> factors;
  for (std::size_t i = 0; i < sizes_.count(); ++i) factors.push_back(factor(i, 1));
  kron::Options how = options();
  how.alpha = arrays_.alpha;
  how.beta = arrays_.beta;
  if (how.beta != 0) how.y = &y;
  const bool in_place = z.data == x.data || (how.y != nullptr && z.data == y.data);
  if ((handle_.options & fastKronOptionsTune) != 0 && !in_place && z.count() != 0 && sizes_.k != 0 &&
      how.alpha != 0)
    tune(factors, x, z, how);
  multiply(factors, x, z, how);
}

/// Measures a problem that the handle meets for the first time.
void Product::tune(const std::vector<Tensor>& factors, const Tensor& x, const Tensor& out,
                   const kron::Options& options) {
  const std::string problem = key(factors);
  if (handle_.tuned.has(problem)) return;
  kron::tune(options, [&](const kron::Options& o) { multiply(factors, x, out, o); });
  handle_.tuned.add(problem);
}

std::string Product::key(const std::vector<Tensor>& factors) const {
  std::string text = fmt::format("{} {} {} {} {} {} {}", op_, device_.index, sizes_.m, arrays_.batch,
                                 static_cast<unsigned>(arrays_.x.op), static_cast<unsigned>(arrays_.factor_op),
                                 arrays_.alpha == 1 && arrays_.beta == 0);
  for (const Tensor& f : factors) text += f.to_text();
  return text;
}

/// [batch, M, slices, extent], [batch, slices, extent, M] from the left. `rotated`: slices are the fastest axis.
Tensor Product::sliced(const Laid& at, std::int64_t slices, std::int64_t extent, bool rotated) const {
  const std::int64_t of_slice = at.column * (rotated ? 1 : extent), of_element = at.column * (rotated ? slices : 1);
  Tensor t;
  t.data = at.data;
  t.dtype = arrays_.dtype;
  t.device = device_;
  t.shape = left_ ? std::vector{arrays_.batch, slices, extent, sizes_.m}
                  : std::vector{arrays_.batch, sizes_.m, slices, extent};
  t.strides = left_ ? std::vector{at.item, of_slice, of_element, at.row}
                    : std::vector{at.item, at.row, of_slice, of_element};
  return t;
}

/// Z, what lies before the first factor, before the second, and so on, and X.
std::vector<Product::Laid> Product::stations(const std::vector<void*>& kept, const std::uint64_t* strides) const {
  std::vector<Laid> stations{laid(arrays_.z, sizes_.l)};
  for (std::size_t i = 1; i < sizes_.count(); ++i) {
    const auto elements = static_cast<std::uint64_t>(sizes_.elements_behind(i));
    stations.push_back(laid({kept[i - 1], fastKronOp_N, strides == nullptr ? elements : strides[i - 1]},
                            sizes_.slices[i] * sizes_.q[i]));
  }
  stations.push_back(laid(arrays_.x, sizes_.k));
  return stations;
}

void Product::check_kept(const std::vector<void*>& kept, const std::uint64_t* strides) {
  for (std::size_t i = 1; i < sizes_.count(); ++i) {
    const std::int64_t elements = sizes_.elements_behind(i);
    check_array("an array of Intermediates", kept[i - 1], elements,
                strides == nullptr ? static_cast<std::uint64_t>(elements) : strides[i - 1]);
  }
}

void Product::run_and_keep(const std::vector<void*>& kept, const std::uint64_t* strides) {
  check_kept(kept, strides);
  const std::vector<Laid> at = stations(kept, strides);
  std::vector<Tensor> factors, in, out;
  for (std::size_t i = 0; i < sizes_.count(); ++i) {
    factors.push_back(factor(i, 2));
    in.push_back(sliced(at[i + 1], sizes_.slices[i], sizes_.p[i], false));
    out.push_back(sliced(at[i], sizes_.slices[i], sizes_.q[i], true));
  }
  // Here, since each call sees its own arrays alone.
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<const Tensor*> others{&in.back()};
    for (std::size_t j = 0; j < out.size(); ++j) {
      others.push_back(&factors[j]);
      if (j != i) others.push_back(&out[j]);
    }
    ops::check_output(op_, out[i], out[i].shape, others);
  }
  for (std::size_t i = out.size(); i-- > 0;) multiply({factors[i]}, in[i], out[i], options());
}

}  // namespace mercer::compat::fastkron
