"""Tells the compiled part where NVIDIA's libraries may lie: in wheels beside this package."""

from __future__ import annotations

import sys
from pathlib import Path

from mercer import _mercer

# The wheels of CUDA 13, those of CUDA 12, and what torch's own wheels carry.
FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")


def hand_over() -> None:
    for entry in sys.path:
        for name in FOLDERS:
            folder = Path(entry, name)
            if folder.is_dir():
                _mercer.add_library_folder(str(folder.resolve()))
    store = Path(__file__).parent / "store"
    if store.is_dir():
        _mercer.set_cuda_store(str(store))
