"""DTensors on gloo ranks of this machine; the checks themselves are in distributed_*.py."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
from conftest import rest_long

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
TESTS = pathlib.Path(__file__).parent
CHECKS = ("distributed_pairs", "distributed_algebra", "distributed_faults")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(ranks: int, backend: str, *checks: str) -> str:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(ranks), str(TESTS / "distributed_worker.py"), backend, *checks,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), cwd=TESTS, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", rest_long([1, 2, 4], 1, 2))
def test_checks(ranks):
    counts = re.findall(r"rank \d+: (\d+) checks, failed: \[\]", run(ranks, "gloo", *CHECKS))
    assert len(counts) == ranks
    assert all(int(count) > 0 for count in counts)


def test_two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert run(2, "nccl", "distributed_gpus").count("4 checks, failed: []") == 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_many_calls_and_groups(backend):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert run(2, backend, "distributed_again").count("1 checks, failed: []") == 2


def free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.parametrize(("device", "ranks"), [("cpu", 3), ("cuda", 2)])
def test_ranks_that_fail_are_late_and_die(device, ranks):
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ports = free_ports(3)
    processes = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "distributed_lost.py"), device, str(rank), str(ranks),
             *ports],
            env={**environment(), "TORCH_NCCL_BLOCKING_WAIT": "1"}, cwd=TESTS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    texts = [process.communicate(timeout=300)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * (ranks - 1) + [-signal.SIGKILL], texts
    for rank in range(ranks - 1):
        assert texts[rank].count("every rank of the mesh must take part") == 2
        assert f"rank {rank}: went on" in texts[rank]
