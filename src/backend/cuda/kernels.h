// Compiled kernels of one plan on one device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "jit/cuda_module.h"
#include "plan/gpu_field.h"
#include "plan/gpu_plan.h"

namespace mercer::cuda {

/// A loaded kernel; keeps its module.
struct Kernel {
  std::shared_ptr<const jit::CudaModule> module;
  const jit::CudaFunction* function = nullptr;
  explicit operator bool() const { return function != nullptr; }
};

/// What is compiled for a plan, by the dtype of the points.
struct PairSources {
  jit::CudaSource tile, pack_x, pack_z, uniforms, merge;  // merge: empty text for a plan that stores its pairs
};
PairSources pair_sources(const plan::GpuPairPlan& plan, Dtype points, Dtype out, const std::string& architecture);

struct PairKernels {
  std::shared_ptr<const plan::GpuPairPlan> plan;
  const CudaDevice* device = nullptr;
  Kernel tile, pack_x, pack_z, uniforms, merge;
};
/// Compiles what is not in a cache, several at once, and loads all of it.
std::shared_ptr<const PairKernels> compile_pair_kernels(std::shared_ptr<const plan::GpuPairPlan> plan, Dtype points,
                                                        Dtype out, int device);

struct FieldKernels {
  std::shared_ptr<const plan::GpuFieldPlan> plan;
  Kernel field, uniforms;
};
std::shared_ptr<const FieldKernels> compile_field_kernels(std::shared_ptr<const plan::GpuFieldPlan> plan, int device);

/// Kernels that depend on no formula, compiled once a process and device. Throw inside a graph capture when that is
/// still to be done.
Kernel plain_pack(Dtype type, Dtype points, int device, CuStream stream);
Kernel fill(int device, CuStream stream);
Kernel sum_splits(Dtype type, int device, CuStream stream);
Kernel nearest_kernel(Dtype type, int device, CuStream stream);
Kernel shared_kernel(const char* function, const std::string& name, const std::string& text, int device,
                     CuStream stream);

/// Refuses to compile while a graph is recorded from this stream.
void require_no_capture(const char* op, int device, CuStream stream);

/// Every kernel is compiled so: contraction of a * b + c is asked for by name, never by the compiler.
jit::CudaSource cuda_source(std::string name, std::string text, const std::string& architecture);

}  // namespace mercer::cuda
