// A product as FastKron describes it, in the terms of mercer/kron.h: views of the caller's arrays, and calls on them.
#pragma once

#include <cstdint>
#include <vector>

#include "compat/fastkron_handle.h"
#include "mercer/kron.h"

namespace mercer::compat::fastkron {

/// The sizes of a product, their products checked: op(X) of m x k (k x m from the left), Z of m x l.
class Sizes {
 public:
  /// Refuses counts and sizes as fastKronInvalidKMMProblem, null pointers as fastKronInvalidArgument.
  Sizes(const char* op, std::uint32_t m, std::uint32_t n, const std::uint32_t* ps, const std::uint32_t* qs);

  std::int64_t m = 0, k = 0, l = 0;
  std::vector<std::int64_t> p, q;
  std::vector<std::int64_t> slices;  ///< columns before and after factor i, without its own axis

  std::size_t count() const { return p.size(); }
  /// Elements after the multiplication by factor i, the last factor being the first.
  std::int64_t elements_behind(std::size_t i) const { return m * slices[i] * q[i]; }
};

/// A matrix of the caller, one for each item of a batch.
struct Matrix {
  const void* data = nullptr;
  fastKronOp op = fastKronOp_N;
  std::uint64_t stride = 0;
};

struct Arrays {
  Dtype dtype = Dtype::float32;
  Matrix x, y, z;
  std::vector<const void*> factors;
  fastKronOp factor_op = fastKronOp_N;
  const std::uint64_t* factor_strides = nullptr;  // null: no batch
  double alpha = 1, beta = 0;
  std::int64_t batch = 1;
};

class Product {
 public:
  /// Checks all that FastKron's callers can get wrong and Mercer does not look at. `left`: KMM.
  Product(const char* op, bool left, Handle& handle, fastKronBackend backend, Sizes sizes, Arrays arrays);

  void run();
  /// Keeps what lies between the factors; `kept` [count - 1], its strides null where items lie one after the other.
  void run_and_keep(const std::vector<void*>& kept, const std::uint64_t* strides);

 private:
  /// A matrix of the batch by its two strides.
  struct Laid {
    void* data;
    std::int64_t item, row, column;
  };
  void check_op(const char* name, fastKronOp op) const;
  void check_array(const char* name, const void* data, std::int64_t elements, std::uint64_t stride);
  void check_arrays();
  void check_kept(const std::vector<void*>& kept, const std::uint64_t* strides);
  Laid laid(const Matrix& matrix, std::int64_t columns) const;
  Tensor view(const Matrix& matrix, std::int64_t columns) const;
  Tensor factor(std::size_t i, int axes) const;
  Tensor sliced(const Laid& matrix, std::int64_t slices, std::int64_t extent, bool rotated) const;
  std::vector<Laid> stations(const std::vector<void*>& kept, const std::uint64_t* strides) const;
  void multiply(const std::vector<Tensor>& factors, const Tensor& x, const Tensor& out,
                const kron::Options& options) const;
  void tune(const std::vector<Tensor>& factors, const Tensor& x, const Tensor& out, const kron::Options& options);
  std::string key(const std::vector<Tensor>& factors) const;
  kron::Options options() const;

  const char* op_;
  bool left_;
  Handle& handle_;
  Sizes sizes_;
  Arrays arrays_;
  bool on_cuda_;
  Device device_;
};

}  // namespace mercer::compat::fastkron
