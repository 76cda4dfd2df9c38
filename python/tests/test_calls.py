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

pytestmark = pytest.mark.quick

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


def test_a_call_whose_end_is_not_known_shows_its_time():
    """And its products with an operator; Ctrl-C ends it then."""
    process = start("""
        import signal, numpy as np, mercer as mc
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = np.random.default_rng(0).normal(size=(6000, 60)).astype("f")
        op = mc.linalg.KernelOperator("laplace", x, ridge=1e-4, bandwidth=100.0)
        print("ready", flush=True)
        with mc.options(progress=True):
            mc.linalg.cg(op, x[:, 0], tol=1e-6)
    """)
    assert process.stdout.readline() == "ready\n"
    errors, deadline = "", time.monotonic() + 60
    while not re.search("cg: .*[1-9][0-9]* products", errors) and time.monotonic() < deadline:
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


A, B = np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0])
OPERATOR = mc.linalg.KernelOperator("gauss", np.arange(9.0)[:, None], ridge=0.1)
TAKE_PROGRESS = {
    **dict.fromkeys(("cho_inverse", "cho_inverse_diagonal", "cholesky", "eigh", "lu_factor"), (A,)),
    **dict.fromkeys(("cg", "cho_solve", "inv_quad_logdet", "minres", "solve_cholesky", "solve_lu",
                     "solve_triangular"), (A, B)),
    **dict.fromkeys(("eigh_top", "nystrom", "pivoted_cholesky", "rpcholesky"), (OPERATOR, 3)),
    "lu_solve": ((A, np.array([0, 1])), B), "sap": (OPERATOR, np.ones(9)),
    **dict.fromkeys(("kron.eigh", "kron.logdet"), ([A, A],)),
    **dict.fromkeys(("kron.kron_matmul", "kron.solve"), ([A, A], np.ones(4))),
    **dict.fromkeys(("kron.intermediates", "kron.matmul"), (np.ones(4), [A, A])),
    **dict.fromkeys(("mercer.cdist", "mercer.paired_distances"), (A, A)), "mercer.pdist": (A,),
    "mercer.parameter_gradient": ("sum(abs(x-z))", A, A),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKE_PROGRESS)
def test_long_calls_take_progress(name):
    """Each of them, and all of mercer.linalg and mercer.kron that compute."""
    home = {"kron": mc.kron, "mercer": mc}.get(name.partition(".")[0], mc.linalg)
    function = getattr(home, name.rpartition(".")[2])
    plain, shown = (function(*TAKE_PROGRESS[name], progress=wanted) for wanted in (False, True))
    assert repr(shown) == repr(plain) or "Preconditioner" in repr(shown)
    assert not _mercer.show_bars(False)


def test_every_function_that_computes_is_among_them():
    names = {*mc.linalg.__all__, *(f"kron.{name}" for name in mc.kron.__all__)}
    others = {"KernelOperator", "Preconditioner", "kron.linear_operator", "kron.tune"}
    assert names - others - TAKE_PROGRESS.keys() == set()


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
