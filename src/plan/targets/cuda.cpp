// Generations of GPUs, a row each, with a device that stands for it in floors. Measured: the H200. Elsewhere the clock
// and the bandwidth are the vendor's, the bandwidth less the share that the H200's copies lose (12 %). Products of
// 16-bit floats: 700e12 a second is what cuBLAS reaches under the H200's power limit, as are 58e12 of float64;
// elsewhere the vendor's figures, the former for sums in float32.
#include "plan/gpu/floor.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kKib = 1024;

// capability, name, device, multiprocessors, GHz, bytes a second, products of 16 bits and of float64, lanes of float32
// and float64, shared memory
constexpr GpuInfo kInfos[] = {
    {80, "sm_80", "NVIDIA A100", 108, 1.41, 1.79e12, 312e12, 19.5e12, 64, 32, 163 * kKib},
    {86, "sm_86", "NVIDIA GeForce RTX 3090", 82, 1.70, 0.82e12, 71e12, 0.56e12, 128, 2, 99 * kKib},
    {89, "sm_89", "NVIDIA GeForce RTX 4090", 128, 2.52, 0.89e12, 165e12, 1.29e12, 128, 2, 99 * kKib},
    {90, "sm_90", "NVIDIA H200", 132, 1.98, 4.235e12, 700e12, 58e12, 128, 64, 227 * kKib},
    {100, "sm_100", "NVIDIA B200", 148, 1.965, 7.0e12, 2250e12, 37e12, 128, 64, 227 * kKib},
    {120, "sm_120", "NVIDIA GeForce RTX 5090", 170, 2.41, 1.58e12, 209e12, 1.64e12, 128, 2, 99 * kKib},
};

}  // namespace

std::span<const GpuInfo> gpu_infos() { return kInfos; }

const GpuInfo& gpu_info(int capability) {
  const GpuInfo* best = &kInfos[0];
  for (const GpuInfo& info : kInfos)
    if (info.capability <= capability) best = &info;
  return *best;
}

}  // namespace mercer::plan
