// Products with Kronecker products on a TestContext: as they are on the CPU, on CUDA by way of arrays of the device
// (ops/cuda_mirror.h).
#pragma once

#include "mercer/kron.h"
#include "ops/cuda_mirror.h"

namespace mercer::testing_support {

/// body(x, factors, out, options), all on the device.
template <class Body>
void take_kron_to_cuda(const Tensor& x, std::span<const Tensor> factors, const Tensor& out,
                       const kron::Options& options, const TestContext& context, const Body& body) {
  std::vector<const Tensor*> inputs{&x, options.y};
  for (const Tensor& factor : factors) inputs.push_back(&factor);
  CudaCall call(inputs, {&out}, {}, context);
  kron::Options moved = options;
  moved.queue = call.arguments().queue;
  moved.queue.trial = options.queue.trial;
  const Tensor y = options.y != nullptr ? call(*options.y) : Tensor();
  if (options.y != nullptr) moved.y = &y;
  std::vector<Tensor> there;
  for (const Tensor& factor : factors) there.push_back(call(factor));
  call.run([&] { body(call(x), there, call(out), moved); });
}

inline void matmul(const Tensor& x, std::span<const Tensor> factors, const Tensor& out, const kron::Options& options,
                   TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return kron::matmul(x, factors, out, options, plain);
  take_kron_to_cuda(x, factors, out, options, context,
                    [&](const Tensor& at_x, const std::vector<Tensor>& there, const Tensor& at_out,
                        const kron::Options& moved) { kron::matmul(at_x, there, at_out, moved, plain); });
}

inline void kron_matmul(std::span<const Tensor> factors, const Tensor& x, const Tensor& out,
                        const kron::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return kron::kron_matmul(factors, x, out, options, plain);
  take_kron_to_cuda(x, factors, out, options, context,
                    [&](const Tensor& at_x, const std::vector<Tensor>& there, const Tensor& at_out,
                        const kron::Options& moved) { kron::kron_matmul(there, at_x, at_out, moved, plain); });
}

}  // namespace mercer::testing_support
