// Products of one large matrix with few columns on a device.
#pragma once

#include "backend/cuda/device_blas.h"

namespace mercer::cuda {

/// out = a v for a symmetric a with neighbouring elements along rows or columns; v and out [n, columns] with
/// neighbouring elements along columns. In float32 columns up to 64 go by a kernel of our own (few_columns.cuh), which
/// reads a or its transpose, whichever lies by columns; others by cuBLAS.
void multiply_matrix(const DeviceBlas& blas, const Tensor& a, const Tensor& v, const Tensor& out);

}  // namespace mercer::cuda
