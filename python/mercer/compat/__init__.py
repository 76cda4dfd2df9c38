"""Drop-in modules: programs written for other kernel libraries, on Mercer.

Each module has the functions of the package of its name, with their arguments, shapes and errors,
and translates a call into calls of Mercer. Change the import, or leave the program as it is and let
``install`` answer its imports::

    import mercer.compat
    mercer.compat.install("kermac")
    import kermac                       # mercer.compat.kermac

``python -m mercer.compat run script.py`` does that for a script. PyTorch must be installed. Tensors
may be on the CPU as well as on a CUDA device.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["MODULES", "install"]

# Each package with its submodules, all of which a program may import by their full names.
MODULES: dict[str, tuple[str, ...]] = {
    "kermac": ("linalg",),
    "kernel_tools": ("kernels", "linalg"),
    "mm_kermac": ("helpers", "hyper_semiring", "hyper_semiring_gradient", "stack_ptx_types"),
    "mm_ptx": ("ptx_inject", "stack_ptx", "stack_ptx_default_types"),
    "pykeops": ("numpy", "numpy.cluster", "torch", "torch.cluster"),
    "pyfastkron": ("fastkronnumpy", "fastkrontorch"),
}


def install(*names: str) -> None:
    """Lets ``import`` find the drop-in modules under the names of the packages that they replace.

    names: of ``MODULES``; all of them when none is given. They win over packages of these names
    anywhere on the path, in this process and from now on. Raises ValueError for a name that has no
    drop-in module, and where the original package has been imported already.
    """
    for name in names or MODULES:
        if name not in MODULES:
            raise ValueError(
                f"install: the drop-in modules are {', '.join(MODULES)}. Received {name!r}"
            )
        found = sys.modules.get(name)
        if found is not None and found.__name__ != f"{__name__}.{name}":
            raise ValueError(
                f"install: {name} must not have been imported before. It came from "
                f"{getattr(found, '__file__', None) or 'an unknown place'}"
            )
    for name in names or MODULES:
        for module in (name, *(f"{name}.{part}" for part in MODULES[name])):
            sys.modules[module] = importlib.import_module(f"{__name__}.{module}")
