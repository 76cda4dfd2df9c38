"""DTensors on gloo ranks of this machine; the checks themselves are in distributed_*.py."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch.distributed.tensor")
TESTS = pathlib.Path(__file__).parent
CHECKS = ("distributed_pairs", "distributed_algebra", "distributed_faults")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(ranks: int, *checks: str) -> str:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(ranks), str(TESTS / "distributed_worker.py"), *checks,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), cwd=TESTS, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_checks(ranks):
    counts = re.findall(r"rank \d+: (\d+) checks, failed: \[\]", run(ranks, *CHECKS))
    assert len(counts) == ranks
    assert all(int(count) > 0 for count in counts)
