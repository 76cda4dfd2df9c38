"""How calls live with forks, signals, the end of Python, memory that runs out, and the threads of
others. Each test is a process of its own."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
from conftest import rest_long

HEAD = """
    import faulthandler, os, signal, sys, threading, time
    import numpy as np, mercer as mc
    faulthandler.enable()
"""


def start(code, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment | variables,
    )  # fmt: skip


def run(code, timeout=100, **variables):
    process = start(code, **variables)
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return out, errors


def test_a_child_forked_in_the_middle_of_calls_computes():
    """The children's calls meet every lock that a thread of the parent may hold at the fork."""
    out, _ = run("""
        x = np.random.default_rng(0).normal(size=(20, 3))
        expected, stop = mc.cdist(x, None, 1), []
        number = iter(range(10**9))

        def work():
            while not stop:
                mc.pairwise(f"sum(abs(x-z)) + {next(number)}", x, None)
                mc.pairwise("sum(abs(x-z))", x, None)
                mc.kron.matmul(x[:, :2], [np.eye(2)])

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        failed = 0
        for _ in range(60):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                same = np.array_equal(mc.cdist(x, None, 1), expected)
                mc.pairwise(f"sum(abs(x-z)) * {next(number) + 2}", x, None)
                mc.kron.matmul(x[:, :2], [np.eye(2)])
                os._exit(0 if same else 1)
            failed += os.waitpid(child, 0)[1] != 0
        stop.append(True)
        print(failed)
    """)
    assert out == "0\n"


def test_every_lock_and_every_lazy_value_is_safe_around_fork():
    """Locks pass the gate of core/system/mutex.h, and values are made at their first use under one.
    What has its own way of living with fork, or meets no other call, is listed."""
    root = pathlib.Path(__file__).parents[2] / "src"
    if not root.exists():
        pytest.skip("no source folder")
    files = ("mutex.h", "mutex.cpp", "parallel.cpp", "apart.cpp")
    own_way = {f"core/system/{name}" for name in files}
    locks = re.compile(r"std::(\w*mutex|once_flag|call_once|condition_variable)\b")
    lazy = re.compile(r"^\s+static (?!constexpr|constinit|thread_local)[^(]*(=|;|\{)")
    found = []
    for path in sorted([*root.rglob("*.cpp"), *root.rglob("*.h")]):
        name = str(path.relative_to(root))
        if name in own_way or name.startswith("kernels/cuda"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (locks.search(line) or lazy.match(line)) and "fmt::format" not in line:
                found.append(f"{name}:{number}: {line.strip()}")
    # The number of OpenBLAS's threads is agreed upon anew in a child.
    expected = {"std::mutex mutex;", "std::condition_variable idle;"}
    rest = [
        line for line in found if line.split(": ", 1)[1] not in expected or "lapack" not in line
    ]
    assert rest == []


WORK_OF_DAEMONS = """
    x = np.random.default_rng(0).normal(size=(6000, 300)).astype("f")
    k = mc.kernel_matrix("gauss", x[:1500, :5]) + np.eye(1500, dtype="f")

    def work():
        while True:
            {work}

    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    time.sleep({delay})
"""
WORKS = ["mc.cdist(x, None, 1.3)", "mc.linalg.cholesky(k)"]


@pytest.mark.parametrize("work", WORKS)
def test_python_ends_while_a_daemon_thread_is_inside_a_call(work):
    for delay in (0.2, 0.35):
        _, errors = run(WORK_OF_DAEMONS.format(work=work, delay=delay))
        assert errors == ""


@pytest.mark.parametrize("work", WORKS)
def test_a_daemon_thread_is_inside_a_call_when_python_has_ended(work):
    """The process waits in C, for a line that comes a second later, after Python's end."""
    _, errors = run(
        WORK_OF_DAEMONS.format(work=work, delay=0.2)
        + """
    import ctypes, subprocess

    line, end = os.pipe()
    os.dup2(line, 0)
    subprocess.Popen(["sh", "-c", "sleep 1; echo"], stdout=end)
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.getchar, None, None)
    """
    )
    assert errors == ""


def test_memory_that_runs_out_is_a_memory_error():
    """At every limit within some MiB of what the process has, while new formulas are compiled."""
    out, _ = run(
        """
        import resource

        x = np.ones((3, 2), "f")
        kinds, number = set(), 1

        def size():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()

        def call():
            global number
            number += 1
            f = f"exp(-sum(abs(x-z)^1.{number}))*log(1 + sum((x-z)^2)) + sin(sum(x*z)*{number})"
            mc.pairwise(f, x, None)
            mc.kernel_gradient(f, x, None, x[:, 0])

        call()
        for step in range(120):
            held, blocks = [], 0
            resource.setrlimit(resource.RLIMIT_AS, (size() + step * 8192, -1))
            try:
                while True:  # what the allocator still has
                    held.append(bytearray(1 << 12))
                    if len(held) > 2000:
                        break
            except MemoryError:
                pass
            del held[-(step % 40) - 1 :]
            try:
                call()
                kinds.add("done")
            except MemoryError:
                kinds.add("MemoryError")
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        call()
        print(sorted(kinds))
        """,
        MERCER_THREADS="1",
    )
    assert "MemoryError" in out


# Work of seconds, and the matrix that it takes.
LONG = {
    "cg": ("mc.linalg.cg(operator, x[:, 0], tol=1e-12, max_iter=10**6, check=False)", None),
    "eigh_top": ("mc.linalg.eigh_top(operator, 200, tol=1e-14, check=False)", None),
    "nystrom": ("mc.linalg.nystrom(operator, 3000)", None),
    "pivoted_cholesky": ("mc.linalg.pivoted_cholesky(operator, 4000)", None),
    "cholesky": ("mc.linalg.cholesky(a)", "matrix(10000)"),
    "solve_lu": ("mc.linalg.solve_lu(a, np.ones((8000, 1)))", "matrix(8000)"),
    "right-hand sides": ("mc.linalg.cho_solve(a, np.ones((5000, 8000)))", "matrix(5000)"),
    "eigh": ("mc.linalg.eigh(a)", "matrix(4000)"),
    "a part of eigh": ("mc.linalg.eigh(a, subset_by_index=(0, 30))", "matrix(4000)"),
    "one tile": ("mc.cdist(wide, None, 1.3)", None),
    "the gradient of one tile": (
        "mc.kernel_gradient('sum(sin(x*z)^2+tanh(x-z)*abs(x+z)^2.7)', wide, None, np.ones((6, 2)))",
        None,
    ),
}


@pytest.mark.parametrize("name", rest_long(LONG, "cg", "pivoted_cholesky", "eigh", "one tile"))
def test_ctrl_c_stops_long_work_within_a_second(name):
    process = start(
        f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def matrix(n):
            a = np.full((n, n), 0.5)
            a[np.arange(n), np.arange(n)] = n
            return a

        x = np.random.default_rng(0).normal(size=(20000, 20))
        operator = mc.linalg.KernelOperator("gauss", x, ridge=1e-9)
        if "tile" in {name!r}:
            wide = np.ones((2, 8_000_000))
            wide[1] = 2
            mc.set_target("interpreter")

        def interrupt():
            time.sleep(0.6)
            print(time.process_time(), flush=True)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        a = {LONG[name][1]}
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            {LONG[name][0]}
            print("done")
        except KeyboardInterrupt:
            print(time.process_time(), flush=True)
        """,
        MERCER_THREADS="1",
        MERCER_POISON="0",  # filling a gigabyte takes seconds, and no user waits for it
    )
    out, errors = process.communicate(timeout=100)
    lines = out.split()
    assert (process.returncode, errors) == (0, ""), errors[-2000:]
    assert len(lines) == 2, out
    assert lines[1] != "done", "shorter than what was to be stopped"
    # Seconds of the process's own time: a shared machine may leave it little.
    assert float(lines[1]) - float(lines[0]) < 3


DENIED = """
    import ctypes
    PR_SET_MDWE, REFUSES_EXECUTABLE = 65, 1
    if {early} and ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSES_EXECUTABLE, 0, 0, 0) != 0:
        print("not offered")
    x = np.ones((3, 2))
    mc.pairwise("sum(abs(x-z))", x, None)
    if not {early} and ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSES_EXECUTABLE, 0, 0, 0) != 0:
        print("not offered")
    for number in range(3):
        assert np.allclose(mc.pairwise(f"sum(abs(x-z)) + {{number}}", x, None), number)
"""


@pytest.mark.parametrize("early", [True, False])
def test_denied_executable_memory_is_said_once_with_its_cause(early):
    out, errors = run(DENIED.format(early=early))
    if out == "not offered\n":
        pytest.skip("the kernel does not deny executable memory")
    assert errors.count("the system denies it") == 1, errors
    assert "interpreter" in errors
    assert "large" not in errors


def test_executable_memory_that_the_user_denies_is_said_once():
    _, errors = run(
        """
        for number in range(3):
            mc.pairwise(f"sum(abs(x-z)) + {number}", np.ones((3, 2)), None)
        """,
        MERCER_NO_EXEC="1",
    )
    assert errors.count("MERCER_NO_EXEC denies it") == 1, errors
    assert "interpreter" in errors
    assert "large" not in errors


def threads(code="", **variables):
    return run(code + "\nprint(mc.get_num_threads())", **variables)[0]


def test_threads_of_the_environment():
    assert threads(OMP_NUM_THREADS="1") == "1\n"
    assert threads(OMP_NUM_THREADS="1", MERCER_THREADS="3") == "3\n"
    assert threads("mc.set_num_threads(3)", OMP_NUM_THREADS="1") == "3\n"
    assert threads("with mc.options(threads=3): pass", OMP_NUM_THREADS="1") == "1\n"


def test_threads_of_threadpoolctl():
    pytest.importorskip("threadpoolctl", minversion="3.2")
    code = """
    import threadpoolctl
    counts = []
    def note():
        counts.append(mc.get_num_threads())
    note()
    with threadpoolctl.threadpool_limits(1):
        note()
        with mc.options(threads=3):
            note()
        note()
    note()
    print(counts[1:4], counts[4] == counts[0])
    with threadpoolctl.threadpool_limits(1, user_api="mercer"):
        pass
    """
    for first in ("", "import threadpoolctl\n"):
        out, _ = run(first + textwrap.dedent(code))
        assert out == "[1, 3, 1] True\n"
    out, _ = run(textwrap.dedent(code), MERCER_THREADS="4")
    assert out == "[4, 3, 4] True\n"


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize(("asked", "expected"), [("", "1"), ("mc.set_num_threads(3)", "3")])
def test_threads_of_a_worker_of_pytorch(context, asked, expected, tmp_path):
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one cpu")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import mercer as mc, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1
            def __getitem__(self, index):
                {asked or "pass"}
                mc.cdist(torch.ones(3, 2), None)
                return mc.get_num_threads()
        if __name__ == "__main__":
            mc.cdist(torch.ones(3, 2), None)
            before = mc.get_num_threads()
            loader = torch.utils.data.DataLoader(
                Data(), num_workers=1, multiprocessing_context={context!r}
            )
            print([int(count) for count in loader], mc.get_num_threads() == before)
        """)
    )
    counts = ("MERCER_THREADS", "OMP_NUM_THREADS")
    environment = {key: value for key, value in os.environ.items() if key not in counts}
    out = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, env=environment
    )
    assert out.stdout == f"[{expected}] True\n", out.stderr


def test_a_cancelled_call_that_cannot_be_stopped_leaves_its_arrays_alone():
    """LAPACK goes on in memory of its own; neither the next call nor the end of Python waits."""
    out, errors = run("""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        n = 2500
        a = np.random.default_rng(0).normal(size=(n, n))
        a += a.T
        w, v = np.zeros(n), np.zeros((n, n))
        main = threading.main_thread().ident
        threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        try:
            mc.linalg.eigh(a, out=(w, v))
            print("done")
        except KeyboardInterrupt:
            print("interrupted")
        print(mc.linalg.eigh(np.eye(3))[0].tolist(), np.abs(v).max())
    """)
    assert out.splitlines()[-1] == "[1.0, 1.0, 1.0] 0.0" or out.startswith("done")
    assert errors == ""
