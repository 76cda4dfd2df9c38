"""kernel_tools on Mercer: linear algebra (``linalg``) and kernels (``kernels``) of tensors.

Nothing is compiled for it, so USE_KERNEL_TOOLS_JIT, USE_KERNEL_TOOLS_DEBUG and
USE_KERNEL_TOOLS_VERBOSE are not read.
"""

from __future__ import annotations
