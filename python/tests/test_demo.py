"""The tour of `make demo`, with few points to time."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_demo(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    run = subprocess.run(
        [sys.executable, DEMO, "--points", "128", "--out", tmp_path],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert float(re.search(r"accuracy +([0-9.]+)%", run.stdout)[1]) >= 98
    assert "scipy cityblock" in run.stdout
    assert "times as long" in run.stdout
    for name in ("digits.png", "times.png"):
        assert (tmp_path / name).stat().st_size > 10_000
        assert str(tmp_path / name) in run.stdout
