#!/usr/bin/env python3
"""Subjects of commits have at most 72 characters, no full stop, and an empty line after them.

tools/check_commits.py [RANGE]       commits of a range, by default those that main has not
tools/check_commits.py --file FILE   one message, for git's hook commit-msg
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from git_output import git, knows

LONGEST = 72
OF_GIT = ("fixup! ", "squash! ", "amend! ")


def faults(message: str) -> list[str]:
    """What is wrong with a message, each as a rule and what was received."""
    lines = message.strip("\n").split("\n")
    subject = lines[0]
    found = []
    if not subject.strip():
        found.append("a commit must have a subject")
    if len(subject) > LONGEST:
        found.append(f"a subject has at most {LONGEST} characters. Received {len(subject)}")
    if subject.endswith("."):
        found.append("a subject ends without a full stop")
    if subject != subject.strip():
        found.append("a subject starts and ends without spaces")
    if subject.startswith(OF_GIT):
        found.append("a commit that mends another one is to be folded into it")
    if len(lines) > 1 and lines[1].strip():
        found.append("the line after the subject must be empty")
    return found


def without_comments(text: str) -> str:
    """A message as git will keep it: no lines of '#', nothing below the scissors."""
    kept = []
    for line in text.split("\n"):
        if line.startswith("# ---") and ">8" in line:
            break
        if not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept)


def default_range() -> str | None:
    """What HEAD has and main has not; the last commit on main itself; None without git."""
    for name in ("origin/main", "main"):
        base = git("merge-base", name, "HEAD")
        if base and base != git("rev-parse", "HEAD"):
            return f"{base.strip()}..HEAD"
    ranges = {"HEAD~1": "HEAD~1..HEAD", "HEAD": "HEAD"}
    return next((ranges[c] for c in ranges if knows(c)), None)


def commits(span: str) -> list[tuple[str, str]]:
    """(short hash, message) of the commits of a range, merges left out."""
    told = git("log", "--no-merges", "--format=%h%n%B%x00", span)
    if told is None:
        raise SystemExit(f"check_commits: git must know the range. Received {span}.")
    entries = [entry.lstrip("\n").partition("\n") for entry in told.split("\0")]
    return [(commit, message) for commit, _, message in entries if commit]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("range", nargs="?", help="as git log takes it: main..HEAD")
    parser.add_argument("--file", type=pathlib.Path, help="a file with one message")
    options = parser.parse_args(arguments)
    if options.file:
        looked_at = [("message", without_comments(options.file.read_text(encoding="utf-8")))]
    else:
        span = options.range or default_range()
        if span is None:
            print("commits: no checkout of git, so no message is looked at")
            return 0
        looked_at = commits(span)
    found = [(name, fault) for name, message in looked_at for fault in faults(message)]
    for name, fault in found:
        print(f"{name}: {fault}")
    if not found:
        print(f"commits: {len(looked_at)} messages hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
