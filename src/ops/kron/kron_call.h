// A product with a Kronecker product between its checks and its run, for callers that make the result's array.
//
// A call on a GPU that differs in nothing but addresses from one before is not checked again: it finds that one's
// program by a key of everything else, and asks for overlaps alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "mercer/kron.h"

namespace mercer::ops {

class KronCall {
 public:
  /// kron_matmul where `left`, else matmul. What it is given must outlive it.
  KronCall(bool left, const Tensor& x, std::span<const Tensor> factors, const kron::Options& options);
  ~KronCall();
  KronCall(const KronCall&) = delete;
  KronCall& operator=(const KronCall&) = delete;

  /// Checks all but out.
  std::vector<std::int64_t> out_shape();
  /// Once.
  void run(const Tensor& out, Context& context);

 private:
  struct Checked;
  Checked& checked();

  bool left_;
  const Tensor& x_;
  std::span<const Tensor> factors_;
  const kron::Options& options_;
  std::unique_ptr<Checked> checked_;
};

}  // namespace mercer::ops
