"""Options of a thread or task, and the settings of the process."""

from __future__ import annotations

import asyncio
import threading

import mercer as mc
import numpy as np
import pytest
from mercer import _mercer

pytestmark = pytest.mark.quick


def in_force():
    return mc.get_num_threads(), mc.get_target(), mc.get_precision()


@pytest.fixture(autouse=True)
def process():
    before = in_force()
    yield before
    assert in_force() == before


def test_options_nest_and_end():
    threads, target, _ = in_force()
    with mc.options(threads=3, precision="tf32"):
        assert in_force() == (3, target, "tf32")
        with mc.options(threads=1, target="interpreter"):
            assert in_force() == (1, "interpreter", "tf32")
        assert in_force() == (3, target, "tf32")
        with mc.options(threads=0):
            assert mc.get_num_threads() >= 1
    assert mc.get_num_threads() == threads


def test_threads_that_overlap_leave_nothing_behind():
    inside, outside = threading.Event(), threading.Event()
    seen = []

    def other():
        with mc.options(threads=7, precision="bf16"):
            inside.set()
            outside.wait()
        seen.append(in_force())

    before = in_force()
    with mc.options(threads=5):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        assert in_force() == (5, *before[1:])
    assert in_force() == before
    outside.set()
    thread.join()
    assert seen == [before]


def test_tasks_keep_their_own():
    async def work(threads, gate, other):
        with mc.options(threads=threads):
            gate.set()
            await other.wait()
            return mc.get_num_threads()

    async def main():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(work(2, first, second), work(3, second, first))

    assert asyncio.run(main()) == [2, 3]


def test_setters_are_the_process_s():
    before = mc.get_num_threads()
    try:
        with mc.options(threads=3):
            mc.set_num_threads(5)
            assert mc.get_num_threads() == 3
            seen = []
            thread = threading.Thread(target=lambda: seen.append(mc.get_num_threads()))
            thread.start()
            thread.join()
        assert seen == [5]
        assert mc.get_num_threads() == 5
    finally:
        mc.set_num_threads(before)


def test_an_option_that_is_refused_changes_nothing():
    for wrong in ({"threads": -1}, {"threads": 5000}, {"target": "arm"}, {"precision": "fp8"}):
        with pytest.raises(ValueError, match="must be"), mc.options(**wrong):
            pass


def plans_made(call):
    before = mc.plan_count()
    call()
    return mc.plan_count() - before


def test_calls_follow_the_options():
    """A plan of another target is another plan."""
    x = np.random.default_rng(0).normal(size=(40, 7)).astype("f")
    f = mc.kernel("sum(abs(x-z)) + 0.8125")
    mc.clear_plans()
    assert plans_made(lambda: mc.pairwise(f, x)) == 1
    with mc.options(target="interpreter"):
        assert plans_made(lambda: mc.pairwise(f, x)) == (mc.get_target() != "interpreter" or 1)
        assert plans_made(lambda: mc.pairwise(f, x)) == 0
    assert plans_made(lambda: mc.pairwise(f, x)) == 0


def test_arrays_of_jax_take_them_to_other_threads():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((40, 7), "f")
    f = mc.kernel("sum(abs(x-z)) + 0.8125")
    mc.clear_plans()
    assert plans_made(lambda: mc.pairwise(f, x).block_until_ready()) == 1
    with mc.options(target="interpreter"):
        assert plans_made(lambda: mc.pairwise(f, x).block_until_ready()) == 1
    with mc.options(threads=3, precision="tf32"):
        assert _mercer.settings_text() == "threads 3 precision tf32 "
        mc.kron.matmul(x, [jax.numpy.ones((7, 2), "f")]).block_until_ready()


def test_a_backward_pass_follows_its_forward_pass():
    torch = pytest.importorskip("torch")
    x = torch.randn(40, 7, requires_grad=True)
    f = mc.kernel("exp(-sum(square(x-z))) + 0.8125")
    with mc.options(target="interpreter"):
        value = mc.pairwise(f, x).sum()
    mc.clear_plans()
    seen = []
    hook = mc._mercer.unfollowed

    def watched(*arguments, **named):
        seen.append(mc.get_target())
        return hook(*arguments, **named)

    try:
        mc._mercer.unfollowed = watched
        thread = threading.Thread(target=value.backward)
        thread.start()
        thread.join()
    finally:
        mc._mercer.unfollowed = hook
    assert set(seen) == {"interpreter"}
