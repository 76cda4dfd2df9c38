// A product with a Kronecker product between its checks and its run, for callers that make the result's array.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "mercer/kron.h"

namespace mercer::ops {

class KronCall {
 public:
  /// kron_matmul where `left`, else matmul. Checks all but out. What it is given must outlive it.
  KronCall(bool left, const Tensor& x, std::span<const Tensor> factors, const kron::Options& options);
  ~KronCall();
  KronCall(const KronCall&) = delete;
  KronCall& operator=(const KronCall&) = delete;

  std::vector<std::int64_t> out_shape() const;
  /// Once.
  void run(const Tensor& out, Context& context);

 private:
  struct Checked;
  std::unique_ptr<Checked> checked_;
};

}  // namespace mercer::ops
