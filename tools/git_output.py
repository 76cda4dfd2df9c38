"""What git prints, for the tools that look at commits and files of a checkout."""

from __future__ import annotations

import pathlib
import subprocess


def git(*words: str, cwd: pathlib.Path | None = None) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def knows(revision: str, cwd: pathlib.Path | None = None) -> bool:
    return git("rev-parse", "-q", "--verify", revision, cwd=cwd) is not None
