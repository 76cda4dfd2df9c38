"""The benchmarks of GPUs: their rows, floors and texts; the rows run small, on the CPU."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import mercer
import pytest
from mercer import benchmarks
from mercer.benchmarks import (
    backward,
    command,
    engine,
    gpu_data,
    gpu_kron_startup,
    gpu_machine,
    gpu_result,
    gpu_rows,
    gpu_runs,
    gpu_startup,
    keeping,
    random_calls,
)
from mercer.benchmarks.gpu_result import GpuLine
from mercer.benchmarks.gpu_settings import GpuSettings
from mercer.benchmarks.gpu_timing import Stopwatch
from mercer.benchmarks.settings import Settings
from mercer.benchmarks.timing import one_thread

torch = pytest.importorskip("torch")
ROWS = gpu_runs.all_rows()


@pytest.fixture
def settings():
    """The CPU in the place of the GPU, tiny, with floors of an H200."""
    s = GpuSettings("cpu", floors="sm_90")
    s.scale, s.watch = 1e-9, Stopwatch("cpu", 1)
    return s


OF_NEW_PROCESSES = [name for name in ROWS if name == "disk" or name.startswith("kron-startup")]


@pytest.mark.parametrize("name", [name for name in ROWS if name not in OF_NEW_PROCESSES])
def test_row(settings, name, monkeypatch):
    monkeypatch.setattr(gpu_startup, "TRIALS", 1)
    monkeypatch.setattr(random_calls, "CALLS", 2 * len(random_calls.VERBS))
    monkeypatch.setattr(random_calls, "SECONDS", 1e9)
    lines = list(ROWS[name](settings))
    assert lines
    assert not [line for line in lines if "DIFFER" in line.note]
    for line in lines:
        assert line.ms > 0
        assert line.row == name
        assert line.least is None
        assert line.misses() == [], line
        assert len(gpu_result.cells(line)) == len(gpu_result.COLUMNS)
        json.dumps(line.to_dict())


def test_random_calls_on_cpus(monkeypatch, capsys):
    monkeypatch.setattr(random_calls, "CALLS", len(random_calls.VERBS))
    monkeypatch.setattr(random_calls, "SECONDS", 1e9)
    with one_thread():
        lines = list(random_calls.cpu_lines(Settings(quick=True)))
    assert {line.note.split()[0] for line in lines} == set(random_calls.VERBS)
    assert all(line.ratio > 0 for line in lines)
    assert not [line for line in lines if "DIFFER" in line.note]
    losses = sum(line.ratio < 1 for line in lines)
    assert (
        f"{losses} losses of {len(lines)} comparisons in 12 of 12 calls" in capsys.readouterr().out
    )


def test_random_calls_follow_from_their_seed():
    first, again = (random_calls.Draw(3, 1e6, 500) for _ in range(2))
    drawn = [first(index) for index in range(50)]
    assert [call.note for call in drawn] == [again(index).note for index in range(50)]
    assert {call.dtype for call in drawn} == set(random_calls.DTYPES)
    assert all(math.prod(call.shape) <= 1e6 for call in drawn)


@pytest.mark.parametrize("row", backward.BACKWARDS, ids=lambda row: row.name)
def test_row_of_a_backward_on_cpus(row):
    (line,) = backward.lines(dataclasses.replace(row, points=320), Settings(quick=True))
    assert line.seconds > 0
    assert line.ratio > 0
    assert not line.misses_error()


@pytest.mark.parametrize(("name", "count"), [("disk", 1), ("kron-startup 8^5", 2)])
def test_row_of_new_processes(settings, monkeypatch, name, count):
    for module in (gpu_startup, gpu_kron_startup):
        monkeypatch.setattr(module, "TRIALS", 1)
    lines = list(ROWS[name](settings))
    assert len(lines) == count
    assert all(line.ms > 0 and line.row == name for line in lines)


def test_bars_belong_to_one_gpu_and_to_the_full_size(settings):
    line, bars = GpuLine("p1", (8, 8, 8), ms=40, floor_ms=36), gpu_rows.Bars(50, 45)
    assert gpu_runs.with_bars(line, bars, settings).least is None
    settings.scale, settings.name = 1, gpu_rows.BARS_FOR
    line = gpu_runs.with_bars(line, bars, settings)
    assert (line.least, line.reach, line.reached(), line.misses()) == (50, 45, True, [])
    line.ms = 51
    assert line.misses() == ["time"]
    line = gpu_runs.with_bars(line, gpu_rows.Bars(of_floor=0.9), settings)
    assert line.least == pytest.approx(40)


def test_a_line_says_what_it_misses():
    line = GpuLine("p1", (3, 4, 5), ms=2, floor_ms=1, peer="a peer", peer_ms=5, ratio_bar=3)
    assert (line.of_floor, line.ratio, line.misses()) == (0.5, 2.5, ["ratio"])
    line.error, line.error_bar = math.nan, 1e-6  # an output that nobody wrote
    assert line.misses() == ["ratio", "error"]
    cells = dict(zip(gpu_result.COLUMNS, gpu_result.cells(line), strict=True))
    assert cells["of floor"] == "50%"
    assert cells["ratio / bar"] == "2.5 / 3"
    assert cells["mercer"] == "2 ms"
    assert cells["its time"] == "5 ms"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (GpuLine("a", (), least=50, reach=45), "50 / 45 ms"),
        (GpuLine("a", (), least=0.08), "0.08 ms"),
        (GpuLine("a", (), least=12e-3), "12 us"),
        (GpuLine("a", ()), ""),
    ],
)
def test_text_of_bars(line, text):
    assert gpu_result.bars_text(line) == text


@pytest.mark.parametrize(
    ("formula", "slots"),
    [("sum(abs(x-z)^3)", 2), ("max(abs(x-z))", 2), ("sum(max(abs(x-z)-c,0)^2)", 4)],
)
def test_floor(formula, slots):
    floor = engine.gpu_floor(formula, gpu_rows.LARGE, "float32", "sm_90", products=0)
    assert floor["ms"] == pytest.approx(slots * 27.5, rel=0.01)
    assert floor["memory"] == pytest.approx(0.85, abs=0.1)
    assert floor["ms"] == max(floor.values())


def test_floor_of_differences():
    floor = engine.gpu_floor("sqrt(sum((x-z)^2))", gpu_rows.LARGE, "float32", "sm_90", products=0)
    assert floor["ms"] == floor["tensor"] == pytest.approx(42.1, rel=0.01)  # 16 multiply-adds each
    assert floor["issue"] == pytest.approx(27.5, rel=0.01)


def test_floor_of_tensor_cores():
    floor = engine.gpu_floor("sqrt(sum((x-z)^2))", gpu_rows.LARGE, "float32", "sm_90")
    assert floor["ms"] == floor["tensor"] == pytest.approx(7.9, rel=0.01)


def test_floor_refuses():
    with pytest.raises(ValueError, match="sm_120"):
        engine.gpu_floor("sum(x*z)", (8, 8, 8), "float32", "sm_75")
    with pytest.raises(ValueError, match="kernel_gradient"):
        engine.gpu_floor("sum(x*z)", (8, 8, 8), "float32", "sm_90", verb="kernel_agop")


def test_every_row_has_a_floor():
    for row in gpu_rows.PAIRS:
        assert engine.gpu_floor(row.formula, row.shape, row.dtype, "sm_90")["ms"] > 0


@pytest.mark.parametrize("kind", gpu_data.KINDS)
def test_points(kind):
    first = gpu_data.points(kind, 50, 40, "float32", "cpu", 1)
    assert first.shape == (50, 40)
    assert torch.equal(first, gpu_data.points(kind, 50, 40, "float32", "cpu", 1))
    assert not torch.equal(first, gpu_data.points(kind, 50, 40, "float32", "cpu", 2))
    if kind == "mixed":
        assert first[:, -1].std() > 1e5 * first[:, 0].std()


def test_an_error_is_found():
    case = gpu_data.Case((64, 64, 8), "normal", "float32", "cpu")
    out = torch.cdist(case.x, case.z, p=1)
    assert gpu_data.sampled_error(out, case, gpu_rows.norm(1)) < 1e-5
    assert gpu_data.sampled_error(1.01 * out, case, gpu_rows.norm(1)) == pytest.approx(0.01, 0.1)
    assert math.isnan(gpu_data.sampled_error(case.empty(64, 64), case, gpu_rows.norm(1)))


@pytest.mark.parametrize("p", [1, 2, 1.3, 3])
def test_slopes_are_derivatives(p):
    d = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(gpu_rows.norm(p)(d).sum(), d)
    torch.testing.assert_close(gpu_rows.norm_slope(p)(d.detach()), expected)


def test_fresh_formulas_are_fresh():
    for name in gpu_rows.COLD_BARS:
        assert gpu_startup.fresh_formula(name) != gpu_startup.fresh_formula(name)


SHAPE = (64, 64, 1 << 20)


def test_floors_of_cpus_follow_the_family_and_the_clock():
    rate = mercer._mercer.floor_rate
    assert rate("sum((x-z)^2)", SHAPE, "float32", "zen5", 4.0) == pytest.approx(128, rel=1e-3)
    assert rate("sum((x-z)^2)", SHAPE, "float32", "golden_cove", 4.0) == pytest.approx(64, rel=1e-3)


@pytest.mark.parametrize(
    ("clocks", "known", "why"),
    [
        ([(3.0, 3.01, True)], True, ""),
        ([(3.0, 9.9, False)], True, "3.00 GHz by multiplications of three cycles and 9.90"),
        ([(3.0, 3.0, True)], False, "the costs at hand are those of Zen 4"),
    ],
)
def test_no_share_of_a_floor_that_is_not_known(monkeypatch, clocks, known, why):
    monkeypatch.setattr(engine, "_clocks", clocks)
    monkeypatch.setattr(engine, "measure_clock", lambda: None)
    monkeypatch.setattr(mercer._mercer, "cpu_costs", lambda: ("zen4", known, "those of Zen 4"))
    assert why in engine.why_no_floor()
    assert bool(why) == bool(engine.why_no_floor())
    floor = engine.floor("sum(x*z)", SHAPE, "float32", "zen4")
    assert floor == (None if why else pytest.approx(48, rel=1e-3))


def test_a_clock_that_nobody_knows(monkeypatch):
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: 1755)
    assert gpu_machine.clock_mhz("cuda:0") == 1755
    monkeypatch.delattr(torch.cuda, "clock_rate")
    assert gpu_machine.clock_mhz("cuda:0") is None


def test_clocks_are_of_the_line_that_was_timed(settings, monkeypatch):
    def once(call, count=1):
        settings.watch._clocks.append(call())
        return 5.0

    monkeypatch.setattr(settings.watch, "once", once)
    line, next_line = (GpuLine("row", (1, 1, 1)) for _ in range(2))
    settings.time(line, lambda: 1755)
    settings.watch.median(lambda: 1200)  # a peer
    settings.time(next_line, lambda: 1300)
    assert [line.clock_mhz, next_line.clock_mhz] == [1755, 1300]
    assert gpu_result.cells(line)[gpu_result.COLUMNS.index("MHz")] == "1755"


def test_rests_before_calls_that_heat_the_card(monkeypatch):
    watch, rests, times = Stopwatch("cuda:0", 3), [], []
    monkeypatch.setattr(watch, "synchronize", lambda: None)
    monkeypatch.setattr(watch, "once", lambda call, count=1: times.append(count) or 10.0)
    monkeypatch.setattr("mercer.benchmarks.gpu_timing.time.sleep", rests.append)
    assert watch.median(lambda: None) == 10
    assert rests == [0.05] * 3
    times.clear()
    assert watch.sustained(lambda: None, 10.0) == 10
    assert times == [40, 40]
    assert len(rests) == 3
    assert watch.sustained(lambda: None, 1.0) is None
    assert watch.sustained(lambda: None, 300.0) is None


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(gpu_machine, "why_not", lambda device="cuda:0": "there is none")
    monkeypatch.setattr(command, "_on_cpu", lambda rows, options: 0)
    with pytest.raises(ValueError, match="there is none"):
        benchmarks.main(["--device", "cuda"])
    assert benchmarks.main([]) == 0
    assert capsys.readouterr().out == "No rows of a GPU: there is none.\n"


def test_results_of_both_lie_in_two_files(monkeypatch, tmp_path):
    files = {}
    monkeypatch.setattr(gpu_machine, "why_not", lambda device="cuda:0": "")
    monkeypatch.setattr(
        gpu_machine,
        "describe",
        lambda device: {
            "gpu": "a GPU",
            "multiprocessors": 1,
            "most_clock": "1 MHz",
            "driver": "1",
            "cuda": "13",
            "versions": {},
        },
    )
    monkeypatch.setattr(command, "_run", lambda rows, settings, table: [])
    for device in ("cpu", "cuda", "auto"):
        folder = tmp_path / device
        benchmarks.main(["--device", device, "--json", str(folder / "b.json"), "--only", "linf"])
        files[device] = sorted(path.name for path in folder.iterdir())
    assert files == {"cpu": ["b.json"], "cuda": ["b.json"], "auto": ["b.json", "b_cuda.json"]}


def test_results_are_kept_by_machine_date_and_commit(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # no checkout
    monkeypatch.setattr(command, "_run", lambda rows, settings, table: [])
    for _ in range(2):
        assert benchmarks.main(["--device", "cpu", "--only", "linf", "--keep"]) == 0
    first, second = sorted((tmp_path / keeping.RUNS).iterdir(), key=lambda path: len(path.name))
    assert second.name == f"{first.stem}-2.json"
    assert str(second.relative_to(tmp_path)) in capsys.readouterr().out
    machine = json.loads(first.read_text())["machine"]
    assert machine["commit"] == ""
    assert machine["date"][:10] in first.name
    assert re.match(r"\w+", machine["cpu"])[0].lower() in first.name


@pytest.mark.parametrize(
    ("commit", "name"), [("12ab", "nvidia-h200-2026-11-24-12ab"), ("12ab+", "…-12ab-changed")]
)
def test_names_of_kept_results(commit, name):
    machine = {"gpu": "NVIDIA H200", "date": "2026-11-24T13:33:01+00:00", "commit": commit}
    assert keeping.name_of(machine) == name.replace("…", "nvidia-h200-2026-11-24")


def test_list(capsys):
    assert benchmarks.main(["--list", "--device", "cuda"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name} (GPU)" for name in ROWS]
    with pytest.raises(ValueError, match="no such row: p9"):
        benchmarks.main(["--device", "cuda", "--only", "p9"])


@pytest.mark.skipif(bool(gpu_machine.why_not()), reason=gpu_machine.why_not() or "none")
def test_on_a_gpu(tmp_path):
    path = tmp_path / "bench.json"
    names = "p1-small,laplace-k3,call"
    assert (
        benchmarks.main(["--device", "cuda", "--quick", "--only", names, "--json", str(path)]) == 0
    )
    content = json.loads(path.read_text())
    assert content["machine"]["driver"]
    assert {line["row"] for line in content["lines"]} == set(names.split(","))
