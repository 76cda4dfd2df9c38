"""The documentation's code runs: every block of Python, every `mercer explain`, every fault."""

from __future__ import annotations

import importlib.util
import math
import pathlib
import re
import shlex

import mercer as mc
import numpy as np
import pytest
from mercer.__main__ import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
NEEDS_GPU = re.compile(r"cuda|sm_90a|mc\.tune")
NEEDS_PACKAGE = re.compile(r"^import (gpytorch)$", re.M)
# Pages that all ranks run, in test_linalg_distributed.py.
OF_RANKS = {"distributed_matrices"}
WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
]
# Pages that comments name.
NAMED = re.compile(r"\b(?:docs|bench)/[a-z_/-]+\.md\b")
SOURCES = {".h", ".cpp", ".cuh", ".py", ".txt", ".cmake"}
FAULTS = re.findall(r"^\| `([^|]+(?:\|\|[^|]+)*)` \| ([^|]+) \|$",
                    (ROOT / "docs/reference/grammar.md").read_text("utf-8")
                    .split("| fault |")[1], re.M)  # fmt: skip


def blocks(page: pathlib.Path, language: str) -> list[tuple[int, str]]:
    """Each block's first line and text."""
    text = page.read_text("utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def names() -> dict:
    """What pages take for granted: points, values, a formula."""
    rng = np.random.default_rng(0)
    x, z = (rng.random((count, 64), dtype=np.float32) for count in (30, 40))
    m, n = (rng.random(count, dtype=np.float32) for count in (30, 40))
    pairs = rng.random((30, 40), dtype=np.float32)
    return {
        "math": math, "np": np, "mc": mc, "f": mc.gauss(bandwidth=2.0), "x": x, "z": z,
        "x1": x, "x2": z, "x_new": z, "x_test": z, "queries": x, "points": z, "v": n, "y": m,
        "coef": n, "ones": np.ones_like(n), "weights": x[0], "c": pairs, "k": pairs, "b": 2.0,
        "ridge": 0.1, "k1": pairs[:5, :5], "k2": pairs[:8, :8],
    }  # fmt: skip


def anchors(page: pathlib.Path) -> set[str]:
    """What links may name of a page: its headings, as GitHub and MyST write them."""
    headings = re.findall(r"^#{1,3} (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(page: pathlib.Path) -> list[str]:
    """Links of a page to pages or headings that are not there."""
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text("utf-8"))
    homes = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]
    return [
        f"{home.name}#{anchor}"
        for home, anchor in homes
        if not home.exists() or (anchor and home.suffix == ".md" and anchor not in anchors(home))
    ]


def has_gpu() -> bool:
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in OF_RANKS], ids=lambda page: page.stem
)
def test_python(page, capsys):
    namespace, missed = names(), set()
    for line, code in blocks(page, "python"):
        needed = {
            name for name in NEEDS_PACKAGE.findall(code) if importlib.util.find_spec(name) is None
        }
        missed |= needed
        if needed:
            continue
        if not NEEDS_GPU.search(code) or has_gpu():
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    if missed:
        pytest.skip(f"the other blocks ran; missing: {', '.join(missed)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_explain(page, capsys):
    for _, text in blocks(page, "sh"):
        for line in text.splitlines():
            if line.startswith("mercer explain"):
                assert main(shlex.split(line, comments=True)[1:]) == 0


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_faults_of_the_grammar(text, words):
    for alternative in text.split("`, `"):
        with pytest.raises(ValueError, match=re.escape(words.strip())):
            mc.parse(alternative)


def test_faults_are_found():
    assert len(FAULTS) >= 10


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    assert missing(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[a](page.md#a-page), [b](#b), [c](c.md), [d](https://d.e)\n", "utf-8"
    )
    assert missing(page) == ["page.md#b", "c.md#"]


@pytest.mark.parametrize("folder", ["include", "src", "python", "tests", "tools", "cmake"])
def test_pages_that_comments_name(folder):
    named = {
        name
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCES and "__pycache__" not in path.parts
        for name in NAMED.findall(path.read_text("utf-8"))
    }
    assert {name for name in named if not (ROOT / name).exists()} == set()
