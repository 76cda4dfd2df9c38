// Eigenpairs of one symmetric matrix of some hundred rows, in double precision, on a device.
#pragma once

#include <cstdint>

#include "backend/block_basis.h"
#include "backend/cuda/gemm/device_blas.h"

namespace mercer::cuda {

/// Eigenpairs of the leading m x m of h, by columns on the device, of which the upper triangle is read. The kernels of
/// tridiagonal.cuh compute them where a cluster of the device holds the matrix, else cuSOLVER. `place` says where
/// scratch memory comes from.
SmallPairs small_eigen(const DeviceBlas& blas, const PairJob& place, const double* h, std::int64_t stride,
                       std::int64_t m, const Choice& choice);

}  // namespace mercer::cuda
