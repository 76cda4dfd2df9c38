"""What a misspelt name may have meant."""

from __future__ import annotations

from collections.abc import Iterable

#: What other libraries call an argument -> its names here.
_MEANT = {"y": ("z", "x2"), "Y": ("z", "x2"), "Z": ("z",), "X": ("x", "x1"), "weights": ("w",)}


def hint(word: str, known: Iterable[str]) -> str:
    """What a name may have meant, as a part of a message; nothing where none is near: the nearest
    of the known names, the one of another library's, or the only one that begins so."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(word, names, 1, 0.7)
    near = near or [name for name in _MEANT.get(word, ()) if name in names]
    if not near and len(word) > 2:
        near = [name for name in names if name.startswith(word)]
    return f' (did you mean "{near[0]}"?)' if len(near) == 1 else ""
