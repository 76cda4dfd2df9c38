"""A picture of results: how near to its roof each row comes, and bars next to those of peers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mercer._cli import pictures

from .result import time_text

ACCENT, PEER, INK = "#c2410c", "#94a3b8", "#1e293b"


@dataclasses.dataclass
class Group:
    """A row at one size: seconds, the share of its roof that it reaches, and its peers' seconds."""

    name: str
    rate: float  # 1e9 triples (m, n, k) a second
    seconds: float
    share: float | None
    peers: list[tuple[str, float]]


def groups(lines: list[dict[str, Any]]) -> list[Group]:
    """Lines of the JSON, of a CPU or a GPU, with those of one row and size together."""
    found: dict[tuple, Group] = {}
    for line in lines:
        seconds = line["ms"] / 1e3 if "ms" in line else line["seconds"]
        share = line.get("of_floor", line.get("floor"))
        if not seconds or not math.isfinite(seconds):
            continue
        shape = tuple(line["shape"])
        key = (line["row"], shape, line["dtype"], line.get("target"), line.get("data"))
        name = f"{line['row']}, {'x'.join(map(str, shape))}"
        name += "" if line["dtype"] == "float32" else f", {line['dtype']}"
        rate = line.get("gelem") or math.prod(shape) / seconds / 1e9
        group = found.setdefault(key, Group(name, rate, seconds, share, []))
        peer = line["peer_ms"] / 1e3 if line.get("peer_ms") else line.get("peer_seconds")
        if peer:
            group.peers.append((line["peer"], peer))
    return list(found.values())


def draw(path: str, title: str, lines: list[dict[str, Any]]) -> None:
    """Writes a PNG; ValueError where there is nothing to draw."""
    found = groups(lines)
    if not found:
        raise ValueError(f"{path}: a plot needs a row with a time. Received none")
    bars = sum(1 + len(group.peers) for group in found) + len(found)
    roofs = [group for group in found if group.share]
    width, height = (15.0 if roofs else 9.0), max(4.0, 0.17 * bars + 1.2)
    with pictures.figure(path, (width, height)) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, 2, width_ratios=(3, 2)) if roofs else [figure.subplots()]
        _draw_bars(axes[0], found)
        if roofs:
            _draw_roofs(axes[1], roofs)


def _draw_bars(axes: Any, found: list[Group]) -> None:
    """Times on a logarithmic axis; a stroke where the roof would be."""
    place, ticks = 0.0, []
    for group in found:
        ticks.append((place, group.name))
        axes.barh(place, group.seconds, color=ACCENT)
        if group.share:
            axes.plot([group.seconds * group.share] * 2, [place - 0.5, place + 0.5], color=INK)
        axes.annotate(f" {time_text(group.seconds)}", (group.seconds, place), va="center",
                      fontsize=7)  # fmt: skip
        for name, seconds in group.peers:
            place += 1
            axes.barh(place, seconds, color=PEER)
            text = f" {time_text(seconds)}, {seconds / group.seconds:.3g}x: {name}"
            axes.annotate(text, (seconds, place), va="center", fontsize=7)
        place += 2
    axes.set_xscale("log")
    times = [t for group in found for t in (group.seconds, *(t for _, t in group.peers))]
    axes.set_xlim(min(times) / 3, max(times) * 30)  # the words next to the bars
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_yticks(*zip(*ticks, strict=True), fontsize=7)
    axes.set_xlabel("seconds; grey: peers; stroke: the least time of the formula's instructions")


def _draw_roofs(axes: Any, found: list[Group]) -> None:
    """What was reached above what the instructions allow; the diagonal is the roof."""
    roofs = [group.rate / (group.share or math.nan) for group in found]
    low, high = min(group.rate for group in found) / 1.5, max(roofs) * 1.5
    axes.plot([low, high], [low, high], color=INK, label="the roof")
    axes.plot([low, high], [0.8 * low, 0.8 * high], color=PEER, ls="--", label="80 % of it")
    axes.scatter(roofs, [group.rate for group in found], color=ACCENT, zorder=3)
    for group, roof in zip(found, roofs, strict=True):
        text = f" {group.name.partition(',')[0]} {group.share:.0%}"
        axes.annotate(text, (roof, group.rate), fontsize=7, va="top")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_xlabel("Gelem/s that the instructions of the formula allow")
    axes.set_ylabel("Gelem/s reached")
    axes.legend()
