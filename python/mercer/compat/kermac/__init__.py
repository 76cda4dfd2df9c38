"""kermac on Mercer: distances, kernels of them, and gradients, of float32 tensors.

The functions, their arguments, shapes and errors are kermac's. Results have a leading batch axis,
of length 1 for points without one, unless ``out`` is given. Tensors may be on the CPU too;
hyper-parameters may be ints; no call changes a descriptor or waits for a device.
"""

from __future__ import annotations

from mercer.compat._calls import Majorness
from mercer.compat.kermac._common import (
    Alignment,
    CudaTimer,
    FillMode,
    TensorStats,
    ceil_div,
    tensor_stats,
)
from mercer.compat.kermac._descriptors import (
    InnerOperator,
    KernelDescriptor,
    KernelType,
    PowerType,
    Symmetry,
    kernel_descriptor_l1_norm,
    kernel_descriptor_l2_norm,
    kernel_descriptor_laplace_l1,
    kernel_descriptor_laplace_l2,
    kernel_descriptor_mma,
    kernel_descriptor_p_norm,
)
from mercer.compat.kermac._gradients import cdist_grad, cdist_grad_expadd
from mercer.compat.kermac._kernels import (
    cdist,
    cdist_expadd,
    pre_compile_descriptors,
    run_kernel,
)

__all__ = [
    "Alignment", "CudaTimer", "FillMode", "InnerOperator", "KernelDescriptor", "KernelType",
    "Majorness", "PowerType", "Symmetry", "TensorStats", "cdist", "cdist_expadd", "cdist_grad",
    "cdist_grad_expadd", "ceil_div", "kernel_descriptor_l1_norm", "kernel_descriptor_l2_norm",
    "kernel_descriptor_laplace_l1", "kernel_descriptor_laplace_l2", "kernel_descriptor_mma",
    "kernel_descriptor_p_norm", "pre_compile_descriptors", "run_kernel", "tensor_stats",
]  # fmt: skip
