// Long columns that a block method grows, on the CPU or a CUDA device: all that it does with numbers as many as the
// operator has rows, except products with it. Small matrices are the host's, column-major, in double precision.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/system/parallel.h"
#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// Eigenvalues of a small symmetric matrix [m, m], all of them, ascending; vectors of some, as columns [m, wanted].
struct SmallPairs {
  std::vector<double> values;
  std::vector<std::int64_t> wanted;
  std::vector<double> vectors;
};
/// Which of the values are wanted.
using Choice = std::function<std::vector<std::int64_t>(const std::vector<double>& values)>;

/// What is left of a block when its parts along the columns before it are taken away.
struct Projection {
  std::vector<double> coefficients;  // [first, count]
  std::vector<double> gram;          // [count, count], of the products of the columns that are left
};

/// V, grown a block at a time, and H = V^T a V in double precision.
class BlockBasis {
 public:
  struct Sizes {
    const char* op = "";
    Dtype type = Dtype::float32;
    std::int64_t length = 0, columns = 0, results = 0;
    std::int64_t most_block = 0;  // columns of a block
    std::uint64_t seed = 0;
  };

  explicit BlockBasis(const Sizes& sizes);
  virtual ~BlockBasis() = default;
  /// Columns of the basis, or of the room for results: [length, count], one after another.
  virtual Tensor basis(std::int64_t first, std::int64_t count) const = 0;
  virtual Tensor results(std::int64_t first, std::int64_t count) const = 0;

  /// Random columns; the same ones for the same seed.
  virtual void draw(std::int64_t first, std::int64_t count) = 0;
  /// Columns from the host's values, and what these hold.
  virtual void fill(std::int64_t first, std::int64_t count, const std::vector<double>& values) = 0;
  virtual std::vector<double> read(const Tensor& columns) = 0;
  /// False where a value of these columns is known to be infinite or NaN; if not here, `append` shows it.
  virtual bool seems_finite(const Tensor& columns) const = 0;

  /// Columns from `first` on become orthonormal, and orthogonal to those before: old = V c + new r. H gets c as the
  /// columns before `first`, but for the very first block. Blocks that leave little of themselves may be put off.
  virtual void append(std::int64_t first, std::int64_t count) { append_carefully(first, count); }
  /// The first column of the earliest block that was put off and is to be made, and appended, anew; -1 for none.
  virtual std::int64_t put_off() { return -1; }
  /// As `append`, but at once, whatever is left of the block.
  virtual void append_carefully(std::int64_t first, std::int64_t count);
  /// r of the last block [count, count].
  virtual std::vector<double> last_factor() { return r_; }
  /// H becomes the diagonal of these.
  virtual void restart(const std::vector<double>& values) = 0;
  /// H becomes this matrix [m, m].
  virtual void set_products(const std::vector<double>& h, std::int64_t m) = 0;
  /// Eigenpairs of the leading m x m of H.
  virtual SmallPairs decompose(std::int64_t m, const Choice& choice) = 0;

  /// results = V s for the first columns V; s [held, count].
  virtual void combine(std::int64_t held, std::int64_t count, const std::vector<double>& s) = 0;
  /// to = from, of one shape.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  /// |product_j - values_j column_j| for each column.
  virtual std::vector<double> residuals(const Tensor& columns, const Tensor& product,
                                        const std::vector<double>& values) = 0;
  /// to[j] = values_j, an array of the caller.
  virtual void write(const std::vector<double>& values, const Tensor& to) = 0;

  /// block -= V V^T block for the columns V before it.
  virtual Projection project(std::int64_t first, std::int64_t count) = 0;
  /// block = block u^-1 for an upper triangle u [count, count].
  virtual void divide(std::int64_t first, std::int64_t count, const std::vector<double>& u) = 0;

 protected:
  /// The last columns of H: c [first, count].
  virtual void record(std::int64_t first, std::int64_t count, const std::vector<double>& c) = 0;

  const Sizes sizes_;
  std::vector<double> r_;

 private:
  bool factor(std::int64_t first, std::int64_t count, const std::vector<double>& gram);
};

/// The host's H.
class HostProducts {
 public:
  explicit HostProducts(std::int64_t stride) : stride_(stride), h_(static_cast<std::size_t>(stride * stride), 0) {}
  void record(std::int64_t first, std::int64_t count, const std::vector<double>& c);
  void restart(const std::vector<double>& values);
  void set(const std::vector<double>& h, std::int64_t m);
  double& at(std::int64_t i, std::int64_t j) { return h_[static_cast<std::size_t>(i + j * stride_)]; }

 private:
  std::int64_t stride_;
  std::vector<double> h_;
};

namespace cpu {
std::unique_ptr<BlockBasis> block_basis(const BlockBasis::Sizes& sizes, Pool& pool);
}
namespace cuda {
/// A basis whose work is in the stream of the queue and whose memory is the queue's.
std::unique_ptr<BlockBasis> block_basis(const BlockBasis::Sizes& sizes, Device device, const Queue& queue);
}

}  // namespace mercer
