"""mercer.linalg.distributed under mpirun, 1, 2 and 4 ranks: distributed_ranks.py checks."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import mercer as mc
import numpy as np
import pytest

RANKS = pathlib.Path(__file__).with_name("distributed_ranks.py")
CHECKS = re.findall(r"^def (check_\w+)", RANKS.read_text("utf-8"), re.M)


def missing() -> str | None:
    """What these tests need and this machine lacks; `make setup` installs it."""
    if shutil.which("mpirun") is None:
        return "no mpirun: apt-get install openmpi-bin"
    if importlib.util.find_spec("mpi4py") is None:
        return "no mpi4py"
    try:
        ctypes.CDLL("libscalapack-openmpi.so.2.2")
    except OSError:
        return "no ScaLAPACK: apt-get install libscalapack-openmpi2.2"
    return None


needs_ranks = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def mpirun(ranks: int, *command: str, seconds: int = 300) -> subprocess.CompletedProcess:
    paths = [str(pathlib.Path(mc.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    return subprocess.run(
        [*start, sys.executable, "-m", "mpi4py", *command], env=env, capture_output=True,
        text=True, timeout=seconds, check=False,
    )  # fmt: skip


@needs_ranks
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks(ranks, tmp_path):
    out = tmp_path / "results.json"
    run = mpirun(ranks, str(RANKS), str(out))
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads(out.read_text("utf-8"))
    failed = [f"{name}\n{text}" for name, text in results.items() if text]
    assert not failed, "\n".join(failed)
    assert sorted(results) == sorted(CHECKS)
    # xerbla's words: a routine that refuses its arguments may report success all the same.
    assert "illegal value" not in run.stdout + run.stderr


@needs_ranks
def test_a_rank_that_dies_ends_all(tmp_path):
    program = tmp_path / "dies.py"
    program.write_text(
        "import os, numpy as np\n"
        "from mercer.linalg import distributed\n"
        "grid = distributed.Grid()\n"
        "a = distributed.kernel_matrix(grid, 'gauss', np.eye(8), ridge=1.0)\n"
        "if grid.board.rank == 1: raise RuntimeError('this rank has had enough')\n"
        "distributed.solve_cholesky(a, np.ones(8))\n"
        "print('went on')\n"
    )
    run = mpirun(2, str(program), seconds=60)
    assert run.returncode != 0
    assert "this rank has had enough" in run.stderr
    assert "went on" not in run.stdout


@needs_ranks
def test_the_guide(tmp_path):
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/distributed_matrices.md"
    code = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    program = tmp_path / "program.py"
    program.write_text(
        "\n".join(block for block in code if not block.startswith("# Needs")), "utf-8"
    )
    run = mpirun(2, str(program), seconds=60)
    assert run.returncode == 0, run.stderr


def test_what_is_missing_is_named(monkeypatch):
    from mercer.linalg.distributed import _libraries

    monkeypatch.setattr(_libraries, "_first", lambda *_: None)
    monkeypatch.setattr(_libraries, "mpi", lambda: None)
    monkeypatch.setattr(_libraries, "nccl", lambda: None)
    with pytest.raises(ImportError, match=r"apt-get install libscalapack-openmpi2\.2"):
        _libraries.scalapack.__wrapped__()
    with pytest.raises(ImportError, match="pip install nvidia-cusolvermp-cu13"):
        _libraries.cusolvermp.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"apt-get install openmpi-bin .* pip install mpi4py"):
        _libraries.mpi.__wrapped__()


def test_importing_it_loads_nothing():
    code = (
        "import sys, mercer; mercer.linalg.distributed.Grid; "
        "assert not {'mpi4py', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_layouts_deal_every_element_once():
    from mercer.linalg.distributed._layout import Layout

    for shape, block, grid, source in (
        ((17, 5), (4, 2), (2, 3), (0, 0)), ((3, 8), (9, 9), (2, 2), (1, 0)),
        ((0, 4), (1, 1), (1, 2), (0, 1)), ((12, 12), (1, 5), (3, 1), (2, 0)),
    ):  # fmt: skip
        layout, count = Layout(shape, block, grid, source), np.zeros(shape, int)
        for place in np.ndindex(grid):
            rows, cols = layout.of(place)
            assert layout.local_shape(place) == (len(rows), len(cols))
            count[np.ix_(rows, cols)] += 1
        assert (count == 1).all()
