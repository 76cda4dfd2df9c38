"""How large the CPU's rows are, and how long they may take."""

from __future__ import annotations


class Settings:
    """Sizes and patience."""

    def __init__(self, quick: bool = False) -> None:
        self.quick = quick
        self.points = 2048 if quick else 4096
        self.features = (256,) if quick else (256, 784)
        self.product = (5000, 5000, 64) if quick else (20000, 20000, 64)
        self.repeats = 3 if quick else 5
        self.peer_budget = 0.5 if quick else 1.0  # seconds of one call of a peer
