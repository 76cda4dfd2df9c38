"""What a call costs, and how it lives with threads, signals and forks."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import timeit

import mercer as mc
import numpy as np
import pytest
from conftest import in_threads
from mercer import _mercer

# Seconds of work for one call on any machine: 60000 x 60000 pairs of 200 features.
# A background job's child inherits an ignored SIGINT; Python then installs no handler of its own.
LONG = """
    import signal, numpy as np, mercer as mc
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = np.random.default_rng(0).normal(size=(60000, 200)).astype("f")
    print("ready", flush=True)
    mc.kernel_product("laplace", x, None, x[:, :1], progress={progress})
"""


def start(code):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ctrl_c_stops_a_long_call():
    process = start(LONG.format(progress=False))
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - begin < 2


def test_a_bar_shows_after_two_seconds():
    process = start(LONG.format(progress=True))
    assert process.stdout.readline() == "ready\n"
    time.sleep(3.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "kernel_product" in errors.split("Traceback")[0]


BARS = {
    "cg": ("mc.linalg.cg(op, x[:, 0], tol=1e-6, progress=True)", "cg: .*[1-9][0-9]* products"),
    "eigh": ("with mc.options(progress=True): mc.linalg.eigh(x @ x.T)", "eigh: "),
}


@pytest.mark.parametrize("name", BARS)
def test_calls_whose_end_is_not_known_show_their_time(name):
    """And Ctrl-C ends them then. The first line that shows is waited for."""
    call, shown = BARS[name]
    process = start(f"""
        import signal, numpy as np, mercer as mc
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = np.random.default_rng(0).normal(size=(6000, 60)).astype("f")
        op = mc.linalg.KernelOperator("laplace", x, ridge=1e-4, bandwidth=100.0)
        print("ready", flush=True)
        {call}
    """)
    assert process.stdout.readline() == "ready\n"
    errors, deadline = "", time.monotonic() + 60
    while not re.search(shown, errors) and time.monotonic() < deadline:
        part = os.read(process.stderr.fileno(), 4096).decode()
        assert part, errors
        errors += part
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in rest


def test_bars_are_shown_within_their_block_alone():
    assert not _mercer.show_bars(False)
    with mc.options(progress=True):
        assert _mercer.show_bars(True)
        assert in_threads(lambda: _mercer.show_bars(False)) == [False] * 8
        with mc.options(threads=1):
            assert _mercer.show_bars(True)
    assert not _mercer.show_bars(False)


def flat(found):
    if isinstance(found, (list, tuple)):
        return [array for part in found for array in flat(part)]
    return [found]


LIST_FIRST = ("eigh", "kron_matmul", "logdet", "solve")


@pytest.mark.parametrize("name", [*LIST_FIRST, "intermediates", "matmul"])
def test_products_with_factors_take_progress(name):
    factors, x = [np.eye(2) + 0.1, np.eye(3)], np.ones(6)
    both = (factors, x) if name in LIST_FIRST else (x, factors)
    given = both[:1] if name in ("eigh", "logdet") else both
    plain, shown = (getattr(mc.kron, name)(*given, progress=wanted) for wanted in (False, True))
    for a, b in zip(flat(plain), flat(shown), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_short_call_shows_no_bar(capfd):
    x = np.ones((50, 5), "f")
    mc.pairwise("sum(abs(x-z))", x, x, progress=True)
    assert capfd.readouterr().err == ""


def test_other_threads_run_meanwhile():
    x = np.random.default_rng(0).normal(size=(3000, 300)).astype("f")
    mc.cdist(x, None, 1.3)
    ticks, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.3:
        mc.cdist(x, x[:2000], 1.3)
    stop.set()
    counter.join()
    assert ticks[0] > 20


def test_calls_from_many_threads():
    x = np.random.default_rng(0).normal(size=(60, 30)).astype("f")
    expected = mc.cdist(x, None, 1)

    def work():
        return [mc.cdist(x, None, 1) for _ in range(20)][-1]

    for result in in_threads(work):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_computes():
    x = np.random.default_rng(0).normal(size=(300, 30)).astype("f")
    expected = mc.cdist(x, None, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(mc.cdist(x, None, 1), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("f", ["expression", "text", "name"])
def test_overhead(name, f):
    """The bar is 10 microseconds of an idle core; a shared one gets three times that."""
    library = pytest.importorskip(name)
    text = "exp(-sum(abs(x-z)^p)/bandwidth)"
    formula = {"expression": mc.kernel(text), "text": text, "name": "cityblock"}[f]
    params = {} if f == "name" else {"p": 1.3, "bandwidth": 2.0}
    x = library.ones((2, 2), dtype=library.float32)
    call = functools.partial(mc.pairwise, formula, x, x, **params)
    calls = timeit.repeat(call, timer=time.thread_time, number=500, repeat=20)
    assert min(calls) / 500 < 30e-6


def test_formulas_without_end_do_not_fill_the_memory():
    x = np.ones((1, 1), "f")
    for number in range(5000):
        mc.parse(f"sum(x*z) + {number}")
    for number in range(50):
        mc.pairwise(f"sum(x*z) + {number}", x, x)
