#include "backend/cuda/linalg/dense_run.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/runtime/batch.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kTile = 64, kThreads = 256;
constexpr std::int64_t kMostMatrices = 16384;  // some routines of batches fail from 2^15 on
constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kMostBlocks = 1024;  // of a kernel whose threads take several elements

bool is_column_major(const DenseArray& m) {
  return (m.row_stride == 1 || m.rows <= 1) && (m.cols <= 1 || (m.col_stride >= m.rows && m.col_stride >= 1));
}

DenseArray transposed(DenseArray m) {
  std::swap(m.rows, m.cols);
  std::swap(m.row_stride, m.col_stride);
  return m;
}

bool suits(const DenseArray& m) { return is_column_major(m) || is_column_major(transposed(m)); }

}  // namespace

DenseRun::DenseRun(const DenseJob& job, const DenseNeeds& needs, const DenseInfo& info)
    : job_(job), needs_(needs), info_(info), library_(need_cuda_solver(job.op)) {
  const std::int64_t n = job.order, largest = std::max(job.rows, job.cols);
  require(largest <= std::numeric_limits<int>::max(), "{}: orders on CUDA must fit in 32 bits. Received {}.", job.op,
          largest);
  place_.op = job.op;
  place_.device = job.device;
  place_.queue = job.queue;
  place_.type = job.type;
  scope_.emplace(job.device);
  require(place_.rehearsal() != nullptr || !cuda_is_capturing(job.device, place_.stream()),
          "{}: linear algebra must stay out of the capture of a CUDA graph. Received a capturing stream.", job.op);
  lanes_.emplace_back(place_, place_.stream());
  kernels_ = dense_kernels(place_);

  together_ = job.matrices > 1 && n <= needs.most_together && job.rows == job.cols;
  // Routines of batches want no gaps; alone, vectors of four values should fit.
  scratch_stride_ = std::max<std::int64_t>(together_ ? n : round_up(job.rows, std::int64_t{4}), 1);
  const std::int64_t matrix_bytes = checked_product({scratch_stride_, std::max<std::int64_t>(job.cols, 1), size()});
  if (together_)
    chunk_ = std::clamp<std::int64_t>(job.costs.part_bytes / matrix_bytes, 1, std::min(kMostMatrices, job.matrices));
  part_columns_ = std::clamp<std::int64_t>(job.costs.part_bytes / (std::max<std::int64_t>(n, 1) * size() * chunk_), 1,
                                           std::max<std::int64_t>(needs.columns, 1));
  if (!together_ && needs_.home != nullptr && !suits(*needs_.home)) needs_.home = nullptr;

  status_ = workspace_.add(job.matrices * static_cast<std::int64_t>(sizeof(int)));
  lane_start_ = workspace_.bytes();
  said_ = workspace_.add(chunk_ * static_cast<std::int64_t>(sizeof(int)));
  const bool at_home = !together_ && needs_.home != nullptr;
  matrices_ = workspace_.add(at_home ? 0 : chunk_ * matrix_bytes);
  attempts_ = workspace_.add(needs.attempts ? chunk_ * matrix_bytes : 0);
  columns_ = workspace_.add(needs.columns > 0 ? chunk_ * n * part_columns_ * size() : 0);
  pivots_ = workspace_.add(needs.pivots ? chunk_ * n * static_cast<std::int64_t>(sizeof(std::int64_t)) : 0);
  values_ = workspace_.add(needs.values ? chunk_ * n * size() : 0);
  const std::int64_t pointers = together_ ? chunk_ * static_cast<std::int64_t>(sizeof(void*)) : 0;
  matrix_pointers_ = workspace_.add(pointers);
  column_pointers_ = workspace_.add(pointers);
}

void DenseRun::add_buffer(std::size_t device_bytes, std::size_t host_bytes) {
  buffer_bytes_ = device_bytes;
  host_bytes_ = host_bytes;
  buffer_ = workspace_.add(static_cast<std::int64_t>(device_bytes));
}

void DenseRun::add_lanes() {
  lane_bytes_ = workspace_.bytes() - lane_start_;
  if (together_ || std::max(job_.rows, job_.cols) > kMostSideBySide) return;
  const std::int64_t lanes = std::min(job_.matrices, kLanes);
  workspace_.add(checked_product({lanes - 1, lane_bytes_}));
  for (std::int64_t lane = 1; lane < lanes && place_.rehearsal() == nullptr; ++lane)
    lanes_.emplace_back(place_, side_stream(job_.device, static_cast<int>(lane), job_.op));
}

bool DenseRun::begin() {
  add_lanes();
  if (!workspace_.take(place_)) return false;
  if (place_.rehearsal() != nullptr) return false;
  clear(statuses(), job_.matrices * static_cast<std::int64_t>(sizeof(int)));
  std::vector<CuStream> sides;
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) sides.push_back(lanes_[lane].place.stream());
  fork_.start(place_.stream(), std::move(sides), job_.op);
  for (lane_ = lanes_.size(); lane_-- > 0;) clear(said(), chunk_ * static_cast<std::int64_t>(sizeof(int)));
  lane_ = 0;
  return true;
}

void DenseRun::clear(void* memory, std::int64_t bytes) const {
  check_cuda(
      cuda_driver()->set_bytes_async(reinterpret_cast<CuPointer>(memory), 0, static_cast<std::size_t>(bytes), stream()),
      job_.op);
}

void DenseRun::download(std::vector<int>& to, const int* from, CuStream stream) const {
  check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(to.data()), reinterpret_cast<CuPointer>(from),
                                       to.size() * sizeof(int), stream),
             job_.op);
  check_cuda(cuda_driver()->stream_synchronize(stream), job_.op);
}

void DenseRun::for_each_chunk(const std::function<void(DenseChunk, const DenseHome&)>& body) {
  std::size_t turn = 0;
  for (std::int64_t first = 0; first < job_.matrices; first += chunk_, ++turn) {
    lane_ = turn % lanes_.size();
    const DenseChunk chunk{first, std::min(chunk_, job_.matrices - first)};
    body(chunk, home_of(chunk));
    if (info_.array.data != nullptr) tell(chunk);
  }
  lane_ = 0;
  fork_.join();
  if (info_.host == nullptr) return;
  std::vector<int> found(static_cast<std::size_t>(job_.matrices));
  download(found, statuses(), place_.stream());
  info_.host->assign(found.begin(), found.end());
}

DenseHome DenseRun::home_of(DenseChunk chunk) const {
  if (together_ || needs_.home == nullptr) return scratch(matrices_);
  const bool by_rows = !is_column_major(*needs_.home);
  const DenseArray columns = by_rows ? transposed(*needs_.home) : *needs_.home;
  const std::int64_t least = std::max<std::int64_t>(columns.rows, 1);
  return {job_.at(*needs_.home, chunk.first, 0), columns.cols <= 1 ? least : std::max(least, columns.col_stride),
          by_rows, true};
}

DenseHome DenseRun::scratch(std::int64_t place) const {
  return {at<char>(place), scratch_stride_, needs_.scratch_by_rows && !together_};
}

DenseHome DenseRun::attempt() const { return scratch(attempts_); }

DenseSide DenseRun::packed(const char* data, std::int64_t stride, std::int64_t matrix) const {
  DenseSide side{};
  side.data = const_cast<char*>(data);
  side.row = 1;
  side.col = stride;
  side.packed = matrix;
  return side;
}

/// As the caller's indices have it.
DenseSide DenseRun::at_home(const DenseHome& home) const {
  DenseSide side = packed(home.data, home.stride, job_.rows * job_.cols);
  if (home.by_rows) std::swap(side.row, side.col);
  return side;
}

DenseSide DenseRun::callers(const DenseArray& array, std::int64_t repeat) const {
  DenseSide side{};
  side.data = array.data + DenseJob::offset(repeat, job_.inner, array.inner_strides) *
                               static_cast<std::int64_t>(size_of(array.dtype));
  side.row = array.row_stride;
  side.col = array.col_stride;
  return side;
}

DenseArguments DenseRun::arguments(DenseChunk chunk, std::int64_t rows, std::int64_t cols) const {
  DenseArguments a{};
  a.status = statuses() + chunk.first;
  a.rows = rows;
  a.cols = cols;
  a.first = chunk.first;
  return a;
}

void DenseRun::walk(DenseArguments& a, const DenseArray* from, const DenseArray* to) const {
  BatchWalk walk;
  walk.extent = job_.outer;
  const std::vector<std::int64_t> nowhere(job_.outer.size(), 0);
  for (const DenseArray* array : {from, to})
    walk.steps.push_back(array != nullptr && !array->outer_strides.empty() ? array->outer_strides : nowhere);
  walk.merge(job_.op);
  a.axes = walk.axes();
  walk.write(0, a.from.step);
  walk.write(1, a.to.step);
}

void DenseRun::launch_kernel(const char* name, DenseArguments& a, std::int64_t blocks, std::int64_t matrices) const {
  const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
  launch(kernel, lanes_[lane_].place, {blocks, matrices}, kThreads, 0, a);
}

void DenseRun::move(DenseArguments& a, DenseChunk chunk) const {
  if (a.rows == 0 || a.cols == 0) return;
  launch_kernel("move_dense", a, ceil_div(a.rows, kTile) * ceil_div(a.cols, kTile), chunk.count);
}

void DenseRun::replace_failed(DenseChunk chunk, const DenseHome& home) const {
  if (job_.order == 0) return;
  DenseArguments a = arguments(chunk, job_.rows, job_.cols);
  a.to = at_home(home);
  launch_kernel("replace_dense", a, std::min(ceil_div(job_.rows * job_.cols, kThreads), kMostBlocks), chunk.count);
}

void DenseRun::load(DenseChunk chunk, const DenseArray& given, const DenseHome& home, int part) const {
  const bool is_there = home.is_callers && home.data == job_.at(given, chunk.first, 0);
  if (is_there && needs_.keeps_home) return;
  DenseArguments a = arguments(chunk, job_.rows, job_.cols);
  a.from = callers(given);
  a.part = part;
  a.examines = 1;
  if (!is_there) a.to = at_home(home);
  // One by one, the caller's home is named by its address, without a walk.
  walk(a, &given, nullptr);
  move(a, chunk);
  replace_failed(chunk, home);
}

void DenseRun::check_pivots(DenseChunk chunk, const DenseHome& home) const {
  DenseArguments a = arguments(chunk, job_.order, job_.order);
  a.from = at_home(home);
  a.to.data = said();
  launch_kernel("check_pivots", a, 1, chunk.count);
}

void DenseRun::settle(DenseChunk chunk) const {
  DenseArguments a = arguments(chunk, chunk.count, 1);
  a.said = said();
  launch_kernel("settle_dense", a, ceil_div(chunk.count, kThreads), 1);
}

void DenseRun::tell(DenseChunk chunk) const {
  DenseArguments a = arguments(chunk, chunk.count, 1);
  a.to = callers(info_.array);
  walk(a, nullptr, &info_.array);
  launch_kernel("settle_dense", a, ceil_div(chunk.count, kThreads), 1);
}

void DenseRun::store(DenseChunk chunk, const DenseHome& home, const DenseArray& out, int part, bool clears) const {
  DenseArguments a = arguments(chunk, out.rows, out.cols);
  a.from = at_home(home);
  a.to = callers(out);
  a.part = part;
  a.spoils = 1;
  a.clears = clears;
  walk(a, nullptr, &out);
  move(a, chunk);
}

void DenseRun::load_columns(DenseChunk chunk, const DenseArray& b, std::int64_t repeat, std::int64_t from,
                            std::int64_t count) const {
  DenseArguments a = arguments(chunk, job_.order, count);
  a.from = callers(b, repeat);
  a.from.data = static_cast<char*>(a.from.data) + from * b.col_stride * size();
  a.to = packed(columns(), job_.order, job_.order * count);
  walk(a, &b, nullptr);
  move(a, chunk);
}

void DenseRun::solve(DenseChunk chunk, const DenseArray& b, const DenseArray& x,
                     const std::function<void(std::int64_t)>& solve) const {
  for (std::int64_t repeat = 0; repeat < job_.repeats; ++repeat) {
    for (std::int64_t from = 0; from < x.cols && x.rows > 0; from += part_columns_) {
      const std::int64_t count = std::min(part_columns_, x.cols - from);
      load_columns(chunk, b, repeat, from, count);
      solve(count);
      store_columns(chunk, x, repeat, from, count);
    }
  }
}

void DenseRun::store_columns(DenseChunk chunk, const DenseArray& x, std::int64_t repeat, std::int64_t from,
                             std::int64_t count) const {
  DenseArguments a = arguments(chunk, job_.order, count);
  a.from = packed(columns(), job_.order, job_.order * count);
  a.to = callers(x, repeat);
  a.to.data = static_cast<char*>(a.to.data) + from * x.col_stride * size();
  a.spoils = 1;
  walk(a, nullptr, &x);
  move(a, chunk);
}

void DenseRun::unit_columns(DenseChunk chunk, std::int64_t rows, std::int64_t count, std::int64_t first) const {
  DenseArguments a = arguments(chunk, rows, count);
  a.to = packed(columns(), rows, rows * count);
  a.first = first;
  launch_kernel("unit_columns", a, std::clamp<std::int64_t>(ceil_div(rows * count, kThreads), 1, kMostBlocks),
                chunk.count);
}

void DenseRun::store_block(DenseChunk chunk, const DenseHome& home, std::int64_t row, std::int64_t col,
                           std::int64_t rows, std::int64_t count) const {
  DenseArguments a = arguments(chunk, rows, count);
  a.from = packed(columns(), rows, rows * count);
  a.to = packed(home.data + (row + col * home.stride) * size(), home.stride, 0);
  move(a, chunk);
}

void DenseRun::mirror(DenseChunk chunk, const DenseArray& out) const {
  DenseArguments a = arguments(chunk, out.rows, out.cols);
  a.from = a.to = callers(out);
  std::swap(a.from.row, a.from.col);
  a.part = 4;
  a.spoils = 1;
  walk(a, &out, &out);
  move(a, chunk);
}

void DenseRun::examine_factors(DenseChunk chunk, const DenseHome& home) const {
  clear(said(), chunk_ * static_cast<std::int64_t>(sizeof(int)));
  check_pivots(chunk, home);
  settle(chunk);
}

void DenseRun::store_values(DenseChunk chunk, const DenseArray& w) const {
  DenseArguments a = arguments(chunk, w.rows, 1);
  a.from = packed(values(), job_.order, job_.order);
  a.to = callers(w);
  a.spoils = 1;
  walk(a, nullptr, &w);
  move(a, chunk);
}

void DenseRun::read_pivots(DenseChunk chunk, const DenseArray& given) const {
  if (job_.order == 0) return;
  DenseArguments a = arguments(chunk, job_.order, 1);
  a.from = callers(given);
  a.to.data = pivots();
  a.wide = !together_;
  walk(a, &given, nullptr);
  launch_kernel("read_pivots", a, ceil_div(job_.order, kThreads), chunk.count);
}

void DenseRun::write_pivots(DenseChunk chunk, const DenseArray& wanted) const {
  if (job_.order == 0) return;
  DenseArguments a = arguments(chunk, job_.order, 1);
  a.from.data = pivots();
  a.to = callers(wanted);
  a.wide = !together_;
  walk(a, nullptr, &wanted);
  launch_kernel("write_pivots", a, ceil_div(job_.order, kThreads), chunk.count);
}

void DenseRun::square_columns(DenseChunk chunk, const DenseArray& out, std::int64_t repeat, std::int64_t from,
                              std::int64_t count) const {
  DenseArguments a = arguments(chunk, job_.order, count);
  a.from = packed(columns(), job_.order, job_.order * count);
  a.to = callers(out, repeat);
  a.to.data = static_cast<char*>(a.to.data) + from * out.col_stride * static_cast<std::int64_t>(sizeof(double));
  a.wide = 1;
  walk(a, nullptr, &out);
  launch_kernel("sum_squares", a, std::min(count, kMostBlocks), chunk.count);
}

void DenseRun::square_panel(DenseChunk chunk, const DenseArray& values, std::int64_t from, std::int64_t rows,
                            std::int64_t count) const {
  DenseArguments a = arguments(chunk, rows, count);
  a.from = packed(columns(), rows, rows * count);
  a.to = callers(values);
  a.to.data = static_cast<char*>(a.to.data) + from * values.row_stride * size();
  a.to.col = values.row_stride;
  walk(a, nullptr, &values);
  launch_kernel("sum_squares", a, std::min(count, kMostBlocks), chunk.count);
}

void DenseRun::sum_logarithms(DenseChunk chunk, const DenseHome& home, const DenseArray& out) const {
  DenseArguments a = arguments(chunk, job_.order, 1);
  a.from = at_home(home);
  a.to = callers(out);
  walk(a, nullptr, &out);
  launch_kernel("sum_logarithms", a, 1, chunk.count);
}

void DenseRun::load_attempt(DenseChunk chunk, const DenseArray& given, int part, double amount) const {
  DenseArguments a = arguments(chunk, job_.order, job_.order);
  a.from = callers(given);
  a.to = at_home(attempt());
  a.part = part;
  walk(a, &given, nullptr);
  move(a, chunk);
  replace_failed(chunk, attempt());
  DenseArguments raised = arguments(chunk, job_.order, job_.order);
  raised.to = at_home(attempt());
  raised.amount = amount;
  launch_kernel("raise_dense", raised, 1, chunk.count);
}

void DenseRun::adopt(DenseChunk chunk, const DenseHome& home, int part) const {
  DenseArguments a = arguments(chunk, job_.order, job_.order);
  a.from = at_home(attempt());
  a.to = at_home(home);
  a.part = part;
  a.adopted = said();
  move(a, chunk);
  DenseArguments settled = arguments(chunk, chunk.count, 1);
  settled.adopted = said();
  launch_kernel("settle_dense", settled, ceil_div(chunk.count, kThreads), 1);
}

bool DenseRun::has_failed(DenseChunk chunk) const {
  std::vector<int> found(static_cast<std::size_t>(chunk.count));
  download(found, statuses() + chunk.first, stream());
  return std::any_of(found.begin(), found.end(), [](int status) { return status > 0; });
}

void** DenseRun::matrix_pointers(DenseChunk chunk, const DenseHome& home) const {
  DenseArguments a = arguments(chunk, chunk.count, 1);
  a.from = at_home(home);
  a.to.data = at(matrix_pointers_);
  launch_kernel("point_dense", a, ceil_div(chunk.count, kThreads), 1);
  return at<void*>(matrix_pointers_);
}

void** DenseRun::column_pointers(DenseChunk chunk, std::int64_t count) const {
  DenseArguments a = arguments(chunk, chunk.count, 1);
  a.from = packed(columns(), job_.order, job_.order * count);
  a.to.data = at(column_pointers_);
  launch_kernel("point_dense", a, ceil_div(chunk.count, kThreads), 1);
  return at<void*>(column_pointers_);
}

}  // namespace mercer::cuda
