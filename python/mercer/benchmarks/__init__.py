"""Benchmarks of Mercer against the libraries installed here: ``python -m mercer.benchmarks``.

On the CPU every time is CPU time of this process, best of several repeats, with one thread for all
and the contestants taking turns. Rates are in Gelem/s: 1e9 triples (m, n, k) a second. On a GPU
(``--device cuda``) times are CUDA events', the median of several runs after a warm-up.
"""

from .command import main

__all__ = ["main"]
