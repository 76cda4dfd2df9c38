"""Benchmarks of Mercer against the libraries installed here: ``python -m mercer.benchmarks``.

Every time is CPU time of this process, best of several repeats, with one thread for all and the
contestants taking turns. Rates are in Gelem/s: 1e9 triples (m, n, k) a second.
"""

from .command import main

__all__ = ["main"]
