"""The bar that ``progress=True`` shows, drawn by tqdm where it is installed."""

from __future__ import annotations

import sys


class _Bar:
    """Shows done of total steps."""

    def __init__(self, verb: str) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=1.0, desc=verb, unit="", file=sys.stderr, leave=False,
                         bar_format="{l_bar}{bar}| {elapsed}<{remaining}")  # fmt: skip

    def show(self, done: float, total: float) -> None:
        self._bar.n = done / total if total > 0 else 1.0
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _Line:
    """The same without tqdm: one line, rewritten."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def show(self, done: float, total: float) -> None:
        percent = 100 * done / total if total > 0 else 100.0
        print(f"\r{self._verb}: {percent:3.0f} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


def open_bar(verb: str) -> _Bar | _Line:
    try:
        return _Bar(verb)
    except ImportError:
        return _Line(verb)
