"""What the engine says, in Python's logging under the name "mercer".

A record goes to the handlers where there are any, and is a line of stderr otherwise, never both.
The engine says what ``MERCER_LOG`` or the level of the logger asks for, whichever is more.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any

from mercer import _mercer

NAME = "mercer"
LEVELS = {
    "error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO,
    "debug": logging.DEBUG,
}  # fmt: skip


class _Logger(logging.Logger):
    """Tells the engine what is asked for, which formats nothing else."""

    def setLevel(self, level: int | str) -> None:
        super().setLevel(level)
        _tell_engine(self)


def _number(name: str) -> int:
    """The least number that is said at a level of the engine; "off" has none."""
    return LEVELS.get(name, logging.CRITICAL + 1)


def _tell_engine(logger: logging.Logger) -> None:
    wanted = min(_FROM_START, logger.level or logging.CRITICAL + 1)
    names = [name for name, number in LEVELS.items() if number >= wanted]
    _mercer.set_log_level(names[-1] if names else "off")


def _takes(logger: logging.Logger, number: int) -> bool:
    """Whether a handler is there for a record of this level."""
    if not logger.isEnabledFor(number):
        return False
    place: logging.Logger | None = logger
    while place is not None:
        if any(number >= handler.level for handler in place.handlers):
            return True
        place = place.parent if place.propagate else None
    return False


def _is_of_stderr(logger: logging.Logger, number: int) -> bool:
    """What no handler takes is printed where MERCER_LOG asks for it, or as logging itself would."""
    if "MERCER_LOG" in os.environ:
        return number >= _FROM_START
    return number >= logging.WARNING and logger.isEnabledFor(number)


def emit(messages: list[tuple[str, str, float, int]]) -> None:
    """Messages as (level, text, seconds since the epoch, thread), the oldest first."""
    logger = logging.getLogger(NAME)
    for level, text, seconds, thread in messages:
        number = LEVELS[level]
        if _takes(logger, number):
            logger.handle(_record(number, text, seconds, thread))
        elif _is_of_stderr(logger, number):
            os.write(2, f"mercer: {level}: {text}\n".encode())


def _record(number: int, text: str, seconds: float, thread: int) -> logging.LogRecord:
    record = logging.LogRecord(NAME, number, "mercer", 0, text, None, None)
    started = record.created - record.relativeCreated / 1000
    record.created, record.msecs = seconds, (seconds % 1) * 1000
    record.relativeCreated = (seconds - started) * 1000
    if record.thread != thread:  # a thread of the engine's pool, or one that Python does not know
        record.thread, record.threadName = thread, _name_of(thread)
    return record


def _name_of(thread: int) -> str:
    import threading

    known: dict[Any, str] = {one.ident: one.name for one in threading.enumerate()}
    return known.get(thread, "mercer")


_FROM_START = _number(_mercer.log_level())


def hand_over() -> None:
    logger = logging.getLogger(NAME)
    if type(logger) is logging.Logger:
        logger.__class__ = _Logger
    _tell_engine(logger)
    _mercer.log_to_python(True)
    atexit.register(_mercer.log_to_python, False)
    os.register_at_fork(after_in_child=_mercer.forget_messages)
