// One call of dense linear algebra on a device: chunks of matrices, scratch memory, the kernels of dense.cuh.
//
//   for chunk in matrices
//     load      a → home, looked through for NaN; what fails becomes the identity
//     routine   factors, eigenvectors in home
//     settle    status of each matrix; info of the caller
//     store     home → out, NaN where it failed
//
// Small matrices go by chunks in packed columns, to routines of batches; others one by one, where their memory allows
// without a copy. Matrices that do not fill a device go through a few lanes: streams with scratch memory of their own.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "backend/cuda/linalg/dense.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/side_streams.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/devices/cuda_solver.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

/// Up to this order matrices of a batch go through lanes side by side; larger ones fill a device alone.
inline constexpr std::int64_t kMostSideBySide = 4096;

struct DenseChunk {
  std::int64_t first = 0, count = 0;
};

/// Where the matrices of a chunk are worked on, column-major; `by_rows`: the memory of one that lies by rows, so that
/// it is seen transposed.
struct DenseHome {
  char* data = nullptr;
  std::int64_t stride = 0;  // from column to column
  bool by_rows = false;
  bool is_callers = false;
};

/// What a call needs in addition to its matrices.
struct DenseNeeds {
  const DenseArray* a = nullptr;
  const DenseArray* home = nullptr;  // where matrices that go one by one may be worked on
  std::int64_t columns = 0;          // of right-hand sides
  bool keeps_home = false;           // it is an input, ready for use
  bool scratch_by_rows = false;      // of matrices that go one by one, in scratch memory
  bool attempts = false;             // a second matrix for jitter
  bool pivots = false;
  bool values = false;             // n of them a matrix
  std::int64_t most_together = 0;  // order up to which matrices go by chunks
};

class DenseRun {
 public:
  DenseRun(const DenseJob& job, const DenseNeeds& needs, const DenseInfo& info);

  /// Scratch memory of the routine, on the device.
  void add_buffer(std::size_t device_bytes, std::size_t host_bytes);
  /// Takes the scratch memory; false where the call ends here.
  bool begin();
  /// body(chunk, home) for all of them; then statuses go to the host, if it wants them.
  void for_each_chunk(const std::function<void(DenseChunk, const DenseHome&)>& body);

  bool together() const { return together_; }
  /// Matrices of a chunk, but for the last one.
  std::int64_t chunk() const { return chunk_; }
  int type() const { return job_.type == Dtype::float64; }
  const DenseJob& job() const { return job_; }
  const CudaSolver& library() const { return library_; }
  const SolverHandles& handles() const { return lanes_[lane_].handles; }
  /// The caller's stream, for steps that launch by themselves.
  const PairJob& place() const { return place_; }
  void check(int status, const char* function) const { check_solver(status, job_.op, function); }

  void* buffer() const { return at(buffer_); }
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  void* host_buffer() const { return handles().host_memory(host_bytes_); }
  std::size_t host_bytes() const { return host_bytes_; }
  int* said() const { return at<int>(said_); }
  void* pivots() const { return at(pivots_); }
  char* values() const { return at<char>(values_); }
  char* columns() const { return at<char>(columns_); }
  DenseHome attempt() const;
  /// Arrays of pointers to the matrices of a chunk, and to its right-hand sides.
  void** matrix_pointers(DenseChunk chunk, const DenseHome& home) const;
  void** column_pointers(DenseChunk chunk, std::int64_t columns) const;

  /// part: 0 all, 1 lower, 2 upper, 3 and 4 the same without the diagonal, of the caller's matrix.
  void load(DenseChunk chunk, const DenseArray& a, const DenseHome& home, int part) const;
  /// `said` of Cholesky's factors at home, where the routine passed a pivot by.
  void check_pivots(DenseChunk chunk, const DenseHome& home) const;
  /// Statuses from `said`.
  void settle(DenseChunk chunk) const;
  /// The caller's info from statuses.
  void tell(DenseChunk chunk) const;
  void store(DenseChunk chunk, const DenseHome& home, const DenseArray& out, int part, bool clears) const;
  /// solve(columns) on every part of every right-hand side of the chunk, packed in columns(), with so many columns.
  void solve(DenseChunk chunk, const DenseArray& b, const DenseArray& x,
             const std::function<void(std::int64_t)>& solve) const;
  void load_columns(DenseChunk chunk, const DenseArray& b, std::int64_t repeat, std::int64_t from,
                    std::int64_t count) const;
  /// Stores right-hand sides that are packed in columns() as columns of x, from column `from` on.
  void store_columns(DenseChunk chunk, const DenseArray& x, std::int64_t repeat, std::int64_t from,
                     std::int64_t count) const;
  /// columns() [rows, count], packed, gets columns of the identity from that one on.
  void unit_columns(DenseChunk chunk, std::int64_t rows, std::int64_t count, std::int64_t first) const;
  /// A block at home, of a matrix that goes alone, from columns() [rows, count], packed.
  void store_block(DenseChunk chunk, const DenseHome& home, std::int64_t row, std::int64_t col, std::int64_t rows,
                   std::int64_t count) const;
  /// The upper triangle of the caller's matrix from its lower one; NaN where it failed.
  void mirror(DenseChunk chunk, const DenseArray& out) const;
  /// Matrices of the chunk that are factors without an inverse get a status.
  void examine_factors(DenseChunk chunk, const DenseHome& home) const;
  /// Most columns of a part.
  std::int64_t columns_of_part() const { return part_columns_; }
  void store_values(DenseChunk chunk, const DenseArray& w) const;
  void read_pivots(DenseChunk chunk, const DenseArray& pivots) const;
  void write_pivots(DenseChunk chunk, const DenseArray& pivots) const;
  void square_columns(DenseChunk chunk, const DenseArray& out, std::int64_t repeat, std::int64_t from,
                      std::int64_t count) const;
  /// values [n, 1] from that one on: sums of the squares of columns() [rows, count], packed.
  void square_panel(DenseChunk chunk, const DenseArray& values, std::int64_t from, std::int64_t rows,
                    std::int64_t count) const;
  void sum_logarithms(DenseChunk chunk, const DenseHome& home, const DenseArray& out) const;
  /// A second attempt: its matrices hold a, raised where the first failed.
  void load_attempt(DenseChunk chunk, const DenseArray& a, int part, double amount) const;
  /// Takes over what it achieved, by what was said of it.
  void adopt(DenseChunk chunk, const DenseHome& home, int part) const;
  /// Whether a status is positive; waits for the stream.
  bool has_failed(DenseChunk chunk) const;

 private:
  /// A stream, what its launches ask for, and its handles.
  struct Lane {
    Lane(const PairJob& caller, CuStream stream)
        : queue{stream}, place(caller), handles(caller.device, stream, caller.op) {
      queue.rehearsal = caller.queue->rehearsal;
      place.queue = &queue;
    }
    Queue queue;
    PairJob place;
    SolverHandles handles;
  };
  /// Scratch memory of the lane at work.
  template <class T = void>
  T* at(std::int64_t place) const {
    return workspace_.at<T>(place + static_cast<std::int64_t>(lane_) * lane_bytes_);
  }
  int* statuses() const { return workspace_.at<int>(status_); }
  CuStream stream() const { return lanes_[lane_].place.stream(); }
  void clear(void* memory, std::int64_t bytes) const;
  void download(std::vector<int>& to, const int* from, CuStream stream) const;
  void add_lanes();
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(job_.type)); }
  DenseSide packed(const char* data, std::int64_t stride, std::int64_t matrix) const;
  DenseSide at_home(const DenseHome& home) const;
  DenseHome home_of(DenseChunk chunk) const;
  DenseHome scratch(std::int64_t place) const;
  /// An array of the caller along the outer axes, of this repeat.
  DenseSide callers(const DenseArray& array, std::int64_t repeat = 0) const;
  DenseArguments arguments(DenseChunk chunk, std::int64_t rows, std::int64_t cols) const;
  /// The axes of the batch for what in the arguments is the caller's.
  void walk(DenseArguments& a, const DenseArray* from, const DenseArray* to) const;
  void launch_kernel(const char* name, DenseArguments& a, std::int64_t blocks, std::int64_t matrices) const;
  void move(DenseArguments& a, DenseChunk chunk) const;
  void replace_failed(DenseChunk chunk, const DenseHome& home) const;

  const DenseJob& job_;
  DenseNeeds needs_;
  const DenseInfo info_;
  PairJob place_;  // what scratch memory and launches ask for
  std::optional<CudaScope> scope_;
  const CudaSolver& library_;
  std::deque<Lane> lanes_;
  std::size_t lane_ = 0;  // at work
  Kernel kernels_;
  Workspace workspace_;
  Fork fork_;  // joins before the scratch memory goes back
  bool together_ = false;
  std::int64_t chunk_ = 1, part_columns_ = 0, scratch_stride_ = 1, lane_start_ = 0, lane_bytes_ = 0;
  std::size_t buffer_bytes_ = 0, host_bytes_ = 0;
  std::int64_t status_ = 0, said_ = 0, matrices_ = 0, attempts_ = 0, columns_ = 0, pivots_ = 0, values_ = 0,
               matrix_pointers_ = 0, column_pointers_ = 0, buffer_ = 0;
};

}  // namespace mercer::cuda
