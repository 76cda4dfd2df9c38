/// \file
/// What a call would do, and how fast it could be, without doing it. No data and no permission to run code are needed:
/// any target can be explained on any machine.
///
/// \code
/// const std::string text = mercer::explain("sum(abs(x-z))", {.m = 99, .k = 64}, mercer::Dtype::float32, "auto");
/// const double at_most = mercer::floor_rate("sum(abs(x-z))", {}, mercer::Dtype::float32, "auto", 3.7);  // 1e9 / s
/// const double ms = mercer::gpu_floor("sum(abs(x-z))", {}, mercer::Dtype::float32, "sm_90").ms;
/// \endcode
#pragma once

#include <cstdint>
#include <string>

#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// Sizes of a call: x [m, k], z [n, k].
struct ExplainShape {
  std::int64_t m = 4096;  ///< points of x
  std::int64_t n = 4096;  ///< points of z
  std::int64_t k = 256;  ///< features of a point
};

/// Which call is explained, or has its floor.
struct GpuCall {
  /// Or "kernel_product", "kernel_reduce", "knn", "kernel_gradient"; to be explained "kernel_agop" too.
  std::string verb = "pairwise";
  std::int64_t items = 1;  ///< outputs of one accumulation: values of a parameter of the epilogue
  std::int64_t columns = 1;  ///< E of a product, O of a gradient, the neighbours of knn
  bool symmetric = false;  ///< half of the pairs are computed
  /// The range of the data lets absolute differences run on two pipes, and squares be expanded, if large enough.
  bool mixed_pipes = true;
  int products = 3;  ///< of 16-bit pieces on tensor cores: 1 where values have no low pieces; 0: not used
};

/// Every stage of `pairwise` as text: the simplified formula, its split, the plan, the programs with the slots that
/// they take on each pipe, the size of the code, and the floor in cycles. `dtype` is that of x and z. Exponents that
/// have a default are taken as numbers. Throws invalid_argument for negative sizes, unsupported or compile for what the
/// target cannot run.
std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target);
/// The target may be given by name: "auto" or a target of the CPU; a family of CPUs, "zen4", or one target of it,
/// "zen4:x86_avx2", which needs no such CPU (docs/kernels/cpu_floor.md lists them); an architecture of GPUs, "sm_80" to
/// "sm_120", which needs no GPU and takes the numbers of a device of that generation; or "cuda:0", a GPU of this
/// machine. `call` says which verb, and the text has what every way of computing it said: its time, or why it does not
/// serve (docs/design/ways.md, cpu_ways.md). Throws invalid_argument for a verb that there is not.
std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target,
                    const GpuCall& call = {});

/// The floor as a rate: elements (m, n, k) a second, in 1e9, that one core at this clock (GHz) can reach by the
/// instruction mix alone, with the costs that cpu_costs() names. Compare a measured rate with it.
double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz);
/// The target may be given by the name of a CPU target, as explain() takes it.
double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, double gigahertz);

/// Whose costs plans and floors of CPUs follow here (docs/kernels/cpu_floor.md).
struct CpuCosts {
  std::string name;  ///< "zen5"; "measured"; of Zen 4 where this processor is not known
  bool known = false;  ///< the costs are those of this processor: a share of a floor may be claimed
  std::string text;  ///< a line for people
};
CpuCosts cpu_costs();  ///< those of this process

/// Milliseconds that each unit of a GPU is busy at least.
struct GpuFloor {
  double issue = 0;  ///< issue slots
  double fma = 0;  ///< multiply-add lanes
  double alu = 0;  ///< integer and comparison lanes
  double unit = 0;  ///< the special-function unit
  double tensor = 0;  ///< tensor cores
  double memory = 0;  ///< memory of the device
  double ms = 0;  ///< the busiest of them
};

/// The floor of a call on a GPU, named as for explain(). Throws invalid_argument for a verb or a target that there is
/// not, unsupported or compile for a formula that has no plan there.
GpuFloor gpu_floor(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target,
                   const GpuCall& call = {});

/// The clock of a core, measured twice.
struct Clock {
  double gigahertz = 0;  ///< by a chain of multiplications, three cycles each
  double by_rotations = 0;  ///< by a chain of rotations, a cycle each
  /// Within 5 %. Else one of the chains takes other times than on the processors that are known, or the clock changed
  /// meanwhile, and a share of a floor is not to be claimed.
  bool agrees() const;
};

/// Measures the clock of the calling core, which takes some 50 ms.
Clock measure_clock();

}  // namespace mercer
