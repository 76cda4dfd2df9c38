#include "backend/cpu/pairs/sparse_pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace mercer::cpu {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 32;
/// Tasks of a call for each thread, which even out rows of different lengths.
constexpr std::int64_t kTasks = 4;

template <class T>
std::size_t at(T index) {
  return static_cast<std::size_t>(index);
}

/// The elements of an array of one axis.
template <class T, class Each>
void read(const Tensor& array, const Each& each) {
  const T* data = static_cast<const T*>(array.data);
  for (std::int64_t i = 0; i < array.shape[0]; ++i) each(data[i * array.strides[0]]);
}

std::vector<std::int64_t> whole_numbers(const char* name, const char* what, const Tensor& array) {
  require(array.ndim() == 1 && is_whole(array.dtype),
          "sparse points: {} of {} must be int32 or int64 [n]. Received {}.", what, name, array);
  std::vector<std::int64_t> found;
  found.reserve(at(array.shape[0]));
  const auto keep = [&](std::int64_t value) { found.push_back(value); };
  if (array.dtype == Dtype::int32)
    read<std::int32_t>(array, keep);
  else
    read<std::int64_t>(array, keep);
  return found;
}

std::vector<double> doubles(const char* name, const Tensor& array, std::int64_t count) {
  require(array.ndim() == 1 && array.dtype == Dtype::float64 && array.shape[0] == count,
          "sparse points: {} must be float64[{}]. Received {}.", name, count, array);
  std::vector<double> found;
  found.reserve(at(count));
  read<double>(array, [&](double value) { found.push_back(value); });
  return found;
}

}  // namespace

SparsePairs::SparsePairs(const SparseRows& x, const SparseRows* z, std::int64_t features, const Tensor* weights,
                         bool unit)
    : same_(z == nullptr), unit_(unit) {
  require(features >= 0 && features <= kMost, "sparse points: there must be at most 2^32 features. Received {}.",
          features);
  if (weights != nullptr) weights_ = doubles("weights", *weights, features);
  x_ = copied("x", x, features);
  if (!same_) z_ = copied("z", *z, features);
  collect_features(features);
  begins_ = std::make_shared<const Begins>(
      Begins{0, std::vector<std::int64_t>(features_.starts.begin(), features_.starts.end() - 1)});
  if (unit_) find_norms();
}

SparsePairs::Compressed SparsePairs::copied(const char* name, const SparseRows& rows, std::int64_t features) {
  Compressed made;
  made.starts = whole_numbers(name, "starts", rows.starts);
  require(rows.columns.ndim() == 1 && is_whole(rows.columns.dtype),
          "sparse points: columns of {} must be int32 or int64 [n]. Received {}.", name, rows.columns);
  const std::int64_t stored = rows.columns.shape[0];
  require(rows.values.ndim() == 1 && rows.values.dtype == Dtype::float64 && rows.values.shape[0] == stored,
          "sparse points: {} must be float64[{}]. Received {}.", name, stored, rows.values);
  made.values = static_cast<const double*>(rows.values.data);
  if (stored > 1 && rows.values.strides[0] != 1) {
    made.owned = doubles(name, rows.values, stored);
    made.values = made.owned.data();
  }
  require(!made.starts.empty() && static_cast<std::int64_t>(made.starts.size()) <= kMost,
          "sparse points: starts of {} must have an element more than there are points, of which there are less than "
          "2^32. Received {}.", name, made.starts.size());
  require(made.starts.front() == 0 && made.starts.back() == stored &&
              std::is_sorted(made.starts.begin(), made.starts.end()),
          "sparse points: starts of {} must ascend from 0 to the number of columns ({}). Received {} to {}.", name,
          stored, made.starts.front(), made.starts.back());
  made.indices.resize(at(stored));
  const auto copy_columns = [&]<class Index>(const Index* columns) {
    const std::int64_t stride = rows.columns.strides[0];
    for (std::size_t i = 0; i + 1 < made.starts.size(); ++i) {
      std::int64_t before = -1;
      for (std::int64_t s = made.starts[i]; s < made.starts[i + 1]; ++s) {
        const std::int64_t column = columns[s * stride];
        require(column > before && column < features,
                "sparse points: columns of a point of {} must ascend and lie between 0 and {}. Received {} after {}.",
                name, features - 1, column, before);
        made.indices[at(s)] = static_cast<std::uint32_t>(before = column);
      }
    }
  };
  if (rows.columns.dtype == Dtype::int32)
    copy_columns(static_cast<const std::int32_t*>(rows.columns.data));
  else
    copy_columns(static_cast<const std::int64_t*>(rows.columns.data));
  return made;
}

void SparsePairs::collect_features(std::int64_t features) {
  const Compressed& from = z();
  Compressed& made = features_;
  made.starts.assign(at(features) + 1, 0);
  made.indices.resize(from.indices.size());
  made.owned.resize(from.indices.size());
  made.values = made.owned.data();
  for (const std::uint32_t feature : from.indices) ++made.starts[at(feature) + 1];
  for (std::size_t k = 0; k < at(features); ++k) made.starts[k + 1] += made.starts[k];
  std::vector<std::int64_t> next(made.starts.begin(), made.starts.end() - 1);
  for (std::int64_t j = 0; j < cols(); ++j) {
    for (std::int64_t s = from.starts[at(j)]; s < from.starts[at(j) + 1]; ++s) {
      const std::size_t feature = from.indices[at(s)], place = at(next[feature]++);
      made.indices[place] = static_cast<std::uint32_t>(j);
      made.owned[place] = weights_.empty() ? from.values[at(s)] : weights_[feature] * from.values[at(s)];
    }
  }
}

SparsePairs::Norms SparsePairs::norms(const Compressed& points) const {
  const bool is_signed = std::any_of(weights_.begin(), weights_.end(), [](double w) { return w < 0; });
  Norms made;
  for (std::size_t i = 0; i + 1 < points.starts.size(); ++i) {
    double square = 0, size = 0;
    for (std::int64_t s = points.starts[i]; s < points.starts[i + 1]; ++s) {
      const double value = points.values[at(s)], own = value * value;
      const double weighted = weights_.empty() ? own : weights_[points.indices[at(s)]] * own;
      square += weighted;
      size += std::abs(weighted);
    }
    made.squares.push_back(square);
    if (is_signed) made.sizes.push_back(size);
  }
  if (!unit_) return made;
  for (std::size_t i = 0; i < made.squares.size(); ++i) {
    const double square = made.squares[i];
    made.factors.push_back(1 / std::sqrt(square));
    if (is_signed) made.sizes[i] /= square;
    made.squares[i] = 1;
  }
  return made;
}

void SparsePairs::find_norms() const {
  have_norms_.call([this] {
    x_norms_ = norms(x_);
    if (!same_) z_norms_ = norms(z_);
  });
}

std::shared_ptr<const SparsePairs::Begins> SparsePairs::begins_at(std::int64_t col) const {
  const std::lock_guard lock(mutex_);
  if (begins_->col == col) return begins_;
  const bool ahead = begins_->col < col;
  const std::size_t features = features_.starts.size() - 1;
  Begins made{col, std::vector<std::int64_t>(features)};
  for (std::size_t k = 0; k < features; ++k) {
    std::int64_t place = ahead ? begins_->places[k] : features_.starts[k];
    while (place < features_.starts[k + 1] && features_.indices[at(place)] < col) ++place;
    made.places[k] = place;
  }
  begins_ = std::make_shared<const Begins>(std::move(made));
  return begins_;
}

void SparsePairs::dot_row(std::int64_t i, const Begins& begins, double* out) const {
  std::fill_n(out, cols() - begins.col, 0.0);
  const std::int64_t end = x_.starts[at(i) + 1];
  for (std::int64_t s = x_.starts[at(i)]; s < end; ++s) {
    const double value = x_.values[at(s)];
    const std::size_t feature = x_.indices[at(s)];
    // Features lie apart in memory, and the processor cannot foresee which comes next.
    const std::int64_t later = begins.places[x_.indices[at(s + 2 < end ? s + 2 : s)]];
    __builtin_prefetch(features_.indices.data() + later);
    __builtin_prefetch(features_.values + later);
    const std::int64_t last = features_.starts[feature + 1];
    for (std::int64_t t = begins.places[feature]; t < last; ++t)
      out[features_.indices[at(t)] - begins.col] += value * features_.values[at(t)];
  }
  if (!unit_) return;
  const double own = x_norms_.factors[at(i)];
  const double* factors = z_norms().factors.data() + begins.col;
  for (std::int64_t j = 0; j < cols() - begins.col; ++j) out[j] *= own * factors[j];
}

void SparsePairs::square_row(std::int64_t i, const Begins& begins, double near, bool root, double* out) const {
  dot_row(i, begins, out);
  const double own = x_norms_.squares[at(i)], bound = x_norms_.bounds()[i];
  const double* squares = z_norms().squares.data() + begins.col;
  const double* bounds = z_norms().bounds() + begins.col;
  const std::int64_t n = cols() - begins.col;
  std::int64_t some = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    out[j] = (own + squares[j]) - 2 * out[j];
    some += std::abs(out[j]) <= near * (bound + bounds[j]);
  }
  for (std::int64_t j = 0; some > 0; ++j) {
    if (!(std::abs(out[j]) <= near * (bound + bounds[j]))) continue;
    out[j] = same_ && i == j + begins.col ? 0 : difference(i, j + begins.col);
    --some;
  }
  if (!root) return;
  for (std::int64_t j = 0; j < n; ++j) out[j] = std::sqrt(out[j]);
}

/// The sum of w (x - z)^2 itself.
double SparsePairs::difference(std::int64_t i, std::int64_t j) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::int64_t s = x_.starts[at(i)], t = z().starts[at(j)];
  const std::int64_t x_end = x_.starts[at(i) + 1], z_end = z().starts[at(j) + 1];
  const double x_factor = unit_ ? x_norms_.factors[at(i)] : 1, z_factor = unit_ ? z_norms().factors[at(j)] : 1;
  double sum = 0;
  while (s < x_end || t < z_end) {
    const std::uint32_t a = s < x_end ? x_.indices[at(s)] : kNone, b = t < z_end ? z().indices[at(t)] : kNone;
    const bool has_x = s < x_end && (t >= z_end || a <= b), has_z = t < z_end && (s >= x_end || b <= a);
    double gap = 0;
    if (has_x) gap = x_.values[at(s++)] * x_factor;
    if (has_z) gap -= z().values[at(t++)] * z_factor;
    sum += weights_.empty() ? gap * gap : weights_[has_x ? a : b] * gap * gap;
  }
  return sum;
}

template <class Row>
void SparsePairs::each_row(std::int64_t row, std::int64_t col, const Tensor& out, Pool& pool, const Row& make) const {
  require(out.ndim() == 2 && out.dtype == Dtype::float64 && (out.strides[1] == 1 || out.shape[1] <= 1),
          "sparse points: out must be float64 of two axes with its columns side by side. Received {}.", out);
  const std::int64_t count = out.shape[0];
  require(row >= 0 && count <= rows() && row <= rows() - count,
          "sparse points: rows must lie between 0 and {}. Received {} from {} on.", rows(), count, row);
  require(col >= 0 && col <= cols() && out.shape[1] == cols() - col,
          "sparse points: out must have the columns from {} to {}. Received {}.", col, cols(), out);
  const std::shared_ptr<const Begins> begins = begins_at(col);
  const std::int64_t tasks = std::min<std::int64_t>(count, kTasks * pool.threads());
  pool.run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i)
      make(row + i, *begins, static_cast<double*>(out.data) + i * out.strides[0]);
  });
}

void SparsePairs::dots(std::int64_t row, std::int64_t col, const Tensor& out, Pool& pool) const {
  each_row(row, col, out, pool, [this](std::int64_t i, const Begins& begins, double* to) { dot_row(i, begins, to); });
}

void SparsePairs::squares(std::int64_t row, std::int64_t col, double near, const Tensor& out, Pool& pool,
                          bool root) const {
  find_norms();
  each_row(row, col, out, pool,
           [&](std::int64_t i, const Begins& begins, double* to) { square_row(i, begins, near, root, to); });
}

namespace {

template <class Index>
bool ascend(const Tensor& starts, const Tensor& columns, std::int64_t features) {
  const Index *start = static_cast<const Index*>(starts.data), *column = static_cast<const Index*>(columns.data);
  const std::int64_t points = starts.shape[0] - 1, stored = columns.shape[0];
  if (points < 0 || start[0] != 0 || start[points] != stored) return false;
  for (std::int64_t i = 0; i < points; ++i)
    if (start[i] > start[i + 1] || start[i + 1] > stored) return false;
  for (std::int64_t i = 0; i < points; ++i) {
    const std::int64_t first = start[i], end = start[i + 1];
    if (first == end) continue;
    int wrong = column[first] < 0;
    for (std::int64_t s = first + 1; s < end; ++s) wrong |= column[s] <= column[s - 1];
    if (wrong != 0 || column[end - 1] >= features) return false;
  }
  return true;
}

template <class T>
bool are_within(const Tensor& values, double least, double most) {
  const T* data = static_cast<const T*>(values.data);
  int wrong = 0;
  for (std::int64_t s = 0; s < values.shape[0]; ++s) {
    const double size = std::abs(static_cast<double>(data[s]));
    wrong |= !(size >= least) | !(size <= most);
  }
  return wrong == 0;
}

}  // namespace

bool are_plain(const SparseRows& rows, std::int64_t features, double least, double most) {
  const Dtype index = rows.columns.dtype, value = rows.values.dtype;
  for (const Tensor* part : {&rows.starts, &rows.columns, &rows.values})
    if (part->ndim() != 1 || (part->shape[0] > 1 && part->strides[0] != 1)) return false;
  if (!is_whole(index) || rows.starts.dtype != index || rows.values.shape[0] != rows.columns.shape[0]) return false;
  const bool are_rows = index == Dtype::int32 ? ascend<std::int32_t>(rows.starts, rows.columns, features)
                                              : ascend<std::int64_t>(rows.starts, rows.columns, features);
  if (!are_rows) return false;
  if (value == Dtype::float32) return are_within<float>(rows.values, least, most);
  return value == Dtype::float64 && are_within<double>(rows.values, least, most);
}

namespace {

/// Doubles that a cache line holds.
constexpr std::int64_t kLine = 8;

template <class T>
void mirror_line(T* data, std::int64_t stride, std::int64_t first, std::int64_t last, std::int64_t j,
                 std::int64_t width) {
  for (std::int64_t i = first; i < last; ++i)
    for (std::int64_t l = std::max<std::int64_t>(0, i + 1 - j); l < width; ++l)
      data[(j + l) * stride + i] = data[i * stride + j + l];
}

}  // namespace

void mirror_rows(const Tensor& matrix, std::int64_t first, std::int64_t last, Pool& pool) {
  require(matrix.ndim() == 2 && matrix.shape[0] == matrix.shape[1] &&
              (matrix.dtype == Dtype::float32 || matrix.dtype == Dtype::float64) &&
              (matrix.strides[1] == 1 || matrix.shape[1] <= 1),
          "sparse points: a symmetric matrix must be square, of floats, with its columns side by side. Received {}.",
          matrix);
  const std::int64_t n = matrix.shape[0], stride = matrix.strides[0];
  require(0 <= first && first <= last && last <= n, "sparse points: rows must lie between 0 and {}. Received {} to {}.",
          n, first, last);
  const std::int64_t lines = (n - first + kLine - 1) / kLine;
  const std::int64_t tasks = std::min<std::int64_t>(lines, kTasks * pool.threads());
  pool.run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t line = lines * task / tasks; line < lines * (task + 1) / tasks; ++line) {
      const std::int64_t j = first + line * kLine, width = std::min(kLine, n - j);
      if (matrix.dtype == Dtype::float32)
        mirror_line(static_cast<float*>(matrix.data), stride, first, last, j, width);
      else
        mirror_line(static_cast<double*>(matrix.data), stride, first, last, j, width);
    }
  });
}

}  // namespace mercer::cpu
