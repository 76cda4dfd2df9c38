"""The bar that ``progress=True`` shows, drawn by tqdm where it is installed.

A call of the engine opens one by itself (`open_bar`). A fit of many calls has a `Fit` for the time
that it runs, which the steps of its algorithms find by `current()`: where nobody asked for a bar
that is None, and nothing is read or computed for it. Calls of the engine inside a fit tell the
fit's bar what they have done.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np

from mercer import _mercer

_F = TypeVar("_F", bound=Callable[..., Any])
#: Seconds before a bar opens, as in the engine, and between two states of it.
DELAY, INTERVAL = 2.0, 0.05


class _Bar:
    """Shows done of total steps, or for how long work has run whose end is not known."""

    _SHARE, _TIME = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}", "{desc}: {elapsed}{postfix}"

    def __init__(self, verb: str) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=1.0, desc=verb, unit="", file=sys.stderr, leave=False,
                         bar_format=self._TIME)  # fmt: skip

    def show(self, done: float, total: float, note: str = "") -> None:
        self._bar.bar_format = self._SHARE
        self._bar.n = done / total if total > 0 else 1.0
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.refresh()

    def wait(self, products: int) -> None:
        if products > 0:
            self._bar.set_postfix_str(f"{products} products", refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _Line:
    """Shows the same as `_Bar` without tqdm: one line, rewritten."""

    def __init__(self, verb: str) -> None:
        self._verb, self._width, self._share = verb, 0, ""
        self._start = time.monotonic() - DELAY

    def show(self, done: float, total: float, note: str = "") -> None:
        percent = 100 * done / total if total > 0 else 100.0
        self._share = f"{percent:3.0f} %" + (f", {note}" if note else "")
        self._write(self._share)

    def wait(self, products: int) -> None:
        count = f", {products} products" if products > 0 else ""
        self._write(self._share or f"{time.monotonic() - self._start:.0f} s{count}")

    def _write(self, said: str) -> None:
        text = f"{self._verb}: {said}"
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def close(self) -> None:
        print(file=sys.stderr)


def watched(function: _F) -> _F:
    """The function, which has an option progress=, and whose calls of the engine show themselves
    where that is asked for."""

    @functools.wraps(function)
    def called(*arguments: Any, progress: bool = False, **options: Any) -> Any:
        if not progress:
            return function(*arguments, **options)
        with of_calls(True):
            return function(*arguments, **options)

    return cast("_F", called)


def wanted_by(estimator: Any) -> bool:
    """Whether its calls show bars; what is no truth value is refused by its fit."""
    wanted = getattr(estimator, "progress", False)
    return isinstance(wanted, (bool, np.bool_)) and bool(wanted)


@contextlib.contextmanager
def of_calls(wanted: bool) -> Iterator[None]:
    """Every call inside that takes long shows that, whether or not it has an option for it."""
    if not wanted:
        yield
        return
    before = _mercer.show_bars(True)
    try:
        yield
    finally:
        _mercer.show_bars(before)


def drawn(name: str) -> _Bar | _Line:
    try:
        return _Bar(name)
    except ImportError:
        return _Line(name)


def open_bar(verb: str) -> _Bar | _Line | _Inside:
    """What a call of the engine tells its state, once it has taken two seconds."""
    fit = current()
    return drawn(verb) if fit is None else _Inside(fit, verb)


class Fit:
    """The bar of a fit: parts of parts, and the steps of the innermost one."""

    def __init__(self, name: str) -> None:
        self._name, self._start, self._last = name, time.monotonic(), -1.0
        self._low, self._high, self._done, self._notes = 0.0, 1.0, 0.0, [""]
        self._is_one_call = False
        self._bar: Any = None

    @contextlib.contextmanager
    def between(
        self, first: float, last: float, note: str = "", is_one_call: bool = False
    ) -> Iterator[None]:
        """What is done inside is from one share to the other of what is done outside.

        is_one_call: one call of the engine does it, whose share of its work is that of the part.
        """
        before = self._low, self._high, self._is_one_call
        low, high, _ = before
        self._low, self._high = (low + (high - low) * share for share in (first, last))
        self._is_one_call = is_one_call
        self._notes.append(note)
        try:
            self.step(0.0)
            yield
        finally:
            self._low, self._high, self._is_one_call = before
            self._notes.pop()

    def step(self, share: float, note: str = "") -> None:
        """So much of this part is done; note: the quantity that matters, with its name."""
        now = time.monotonic()
        if now - self._start < DELAY or now - self._last < INTERVAL:
            return
        self._last = now
        if self._bar is None:
            self._bar = drawn(self._name)
        done = self._low + (self._high - self._low) * min(max(share, 0.0), 1.0)
        self._done = max(done, self._done)  # what takes longer than was thought stands still
        self._bar.show(self._done, 1.0, ", ".join(filter(None, [*self._notes, note])))

    def called(self, verb: str, share: float | None, state: str) -> None:
        """A call of the engine inside has done this share of its work, or does not know it."""
        moves = self._is_one_call and share is not None
        self.step(share if moves and share is not None else 0.0, f"{verb} {state}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Inside:
    """The part of a fit's bar that a call of the engine inside it has."""

    def __init__(self, fit: Fit, verb: str) -> None:
        self._fit, self._verb = fit, verb

    def show(self, done: float, total: float) -> None:
        share = done / total if total > 0 else 1.0
        self._fit.called(self._verb, share, f"{share:.0%}")

    def wait(self, products: int) -> None:
        self._fit.called(self._verb, None, f"{products} products" if products > 0 else "computes")

    def close(self) -> None:
        """The fit goes on."""


_current: contextvars.ContextVar[Fit | None] = contextvars.ContextVar("bar", default=None)


def current() -> Fit | None:
    """The bar of the fit that runs here, if one was asked for."""
    return _current.get()


@contextlib.contextmanager
def shown(name: str, wanted: bool) -> Iterator[None]:
    """A bar for the fit that runs inside."""
    if not wanted:
        yield
        return
    fit = Fit(name)
    token = _current.set(fit)
    try:
        with of_calls(True):
            yield
    finally:
        _current.reset(token)
        fit.close()


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Steps inside, and calls of the engine, are told to no bar of a fit."""
    if current() is None:
        yield
        return
    token, before = _current.set(None), _mercer.show_bars(False)
    try:
        yield
    finally:
        _mercer.show_bars(before)
        _current.reset(token)


def between(
    first: float, last: float, note: str = "", is_one_call: bool = False
) -> contextlib.AbstractContextManager[None]:
    """A part of the fit that runs here: from one share of it to the other."""
    fit = current()
    if fit is None:
        return contextlib.nullcontext()
    return fit.between(first, last, note, is_one_call)


def part(i: int, count: int, note: str = "") -> contextlib.AbstractContextManager[None]:
    """Part i of so many of the fit that runs here."""
    return between(i / count, (i + 1) / count, note)


def share_of_residual(residual: float, tol: float) -> float:
    """How much of the way from 1 to tol is behind, in digits."""
    if not 0 < residual < math.inf or not 0 < tol < 1:
        return 0.0 if residual > 0 else 1.0
    return math.log(min(residual, 1.0)) / math.log(tol)
