"""How many threads others want a call to have: PyTorch in its workers, threadpoolctl.

OMP_NUM_THREADS is read by the library itself. What ``mercer.set_num_threads`` or MERCER_THREADS
asks for wins over all of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mercer import _mercer


def worker_threads() -> int:
    """PyTorch's threads in a worker of its DataLoader, which has one; elsewhere 0."""
    data = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        return 0
    return sys.modules["torch"].get_num_threads()


def _register() -> None:
    try:
        import threadpoolctl
    except ImportError:
        return
    if not hasattr(threadpoolctl, "register"):  # before 3.2
        return

    class Controller(threadpoolctl.LibController):
        user_api = internal_api = "mercer"
        filename_prefixes = ("_mercer",)
        check_symbols = ("PyInit__mercer",)

        def get_num_threads(self) -> Any:
            return _mercer.get_num_threads()

        def set_num_threads(self, num_threads: Any) -> None:
            _mercer.limit_num_threads(num_threads)

        def get_version(self) -> Any:
            return _mercer.__version__

    threadpoolctl.register(Controller)


def hand_over() -> None:
    os.register_at_fork(after_in_child=_mercer.forget_worker)
    _register()
