"""What a misspelt name may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def hint(word: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as a part of a message; nothing where none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1, 0.7)
    return f'; did you mean "{near[0]}"?' if near else ""
