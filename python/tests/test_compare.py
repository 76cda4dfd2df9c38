"""bench/compare.py: two runs of the benchmarks, row by row."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT, program

pytestmark = pytest.mark.quick

compare = program("bench", "compare")

CPU = {"cpu": "one", "cpus": 2}


def line(row, seconds, peer_seconds=None, **more):
    return {
        "row": row, "shape": [3, 4], "dtype": "float32", "seconds": seconds, "peer": "scipy",
        "peer_seconds": peer_seconds, **more,
    }  # fmt: skip


@pytest.fixture
def run_of(tmp_path):
    """Writes a file of results; its path."""

    def write(name, *lines, machine=CPU):
        path = tmp_path / name
        path.write_text(json.dumps({"machine": machine, "lines": lines}))
        return str(path)

    return write


def test_slower_rows_are_named(run_of, capsys):
    before = run_of("a", line("l1", 1.0, 4.0), line("l2", 1.0), line("gone", 1.0))
    after = run_of("b", line("l1", 1.3, 4.2), line("l2", 1.05), line("new", 1.0))
    assert compare.main([before, after]) == 1
    said = capsys.readouterr().out
    assert "slower by more than 1.1: l1 3x4 float32\n" in said
    assert "2 rows of both" in said
    assert "2 rows of one side only: gone 3x4 float32, new 3x4 float32" in said
    (shown,) = [text for text in said.splitlines() if text.startswith("l1 ")]
    assert shown.split()[-2:] == ["1.30", "1.05"]
    assert not [text for text in said.splitlines() if text.startswith("l2 ")]
    assert compare.main([before, after, "--threshold", "1.5", "--all"]) == 0
    assert "l2 3x4" in capsys.readouterr().out


def test_the_spread_of_several_runs_decides(run_of, capsys):
    """Medians 1 and 1.3, but the slowest run before took 1.25: not slower for certain."""
    before = [run_of(f"a{i}", line("l1", s)) for i, s in enumerate((0.9, 1.0, 1.25))]
    after = [run_of(f"b{i}", line("l1", s)) for i, s in enumerate((1.2, 1.3, 1.35))]
    assert compare.main([",".join(before), ",".join(after), "--all"]) == 0
    assert "1.30  0.96 to 1.50" in capsys.readouterr().out
    assert compare.main([",".join(before[:2]), ",".join(after)]) == 1


def test_rows_of_gpus_with_several_peers(run_of, capsys):
    """A line a peer, all with one time; and times that are not there."""
    old = [line("p2", None, ms=2.0, peer_ms=4.0), line("p2", None, ms=2.0, peer="b", peer_ms=8.0)]
    new = [line("p2", None, ms=1.0, peer_ms=4.0), line("p2", float("nan"), peer="b", peer_ms=8.0)]
    assert compare.main([run_of("a", *old), run_of("b", *new)]) == 0
    said = capsys.readouterr().out
    assert "1 rows of both: geometric mean 0.500" in said
    assert "2 ms      1 ms" in said
    assert compare.main([run_of("a", *old), run_of("b", *new[::-1])]) == 0  # without a time first
    assert "1 rows of both: geometric mean 0.500" in capsys.readouterr().out


def test_files_that_say_nothing_of_one_another(run_of, tmp_path, capsys):
    one, other = run_of("a", line("l1", 1.0)), run_of("b", line("l1", 1.0), machine={"cpu": "two"})
    assert compare.main([one, other]) == 2
    assert "must be of one machine" in capsys.readouterr().err
    assert compare.main([one, other, "--any-machine"]) == 0
    assert compare.main([one, run_of("c", line("l2", 1.0))]) == 2
    assert compare.main([one, str(tmp_path / "none")]) == 2
    (tmp_path / "list").write_text("[]")
    assert compare.main([one, str(tmp_path / "list")]) == 2
    with pytest.raises(SystemExit):
        compare.main([one, one, "--threshold", "0.9"])


def test_kept_results_can_be_compared():
    for path in (ROOT / "bench" / "results").glob("*.json"):
        assert compare.main([str(path), str(path), "--threshold", "1"]) == 0
