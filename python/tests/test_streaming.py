"""``device=``: arrays of the host that stream to a GPU. Where there is none, what is refused."""

from __future__ import annotations

import signal
import threading

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close

torch = pytest.importorskip("torch")

GAUSS = "exp(-sum((x-z)^2)/b)*(1 + j/100)"
M, N, K = 300, 500, 7


def arrays(dtype="float32"):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(dtype) for shape in ((M, K), (N, K), (N, 3))]


def calls():
    """Every verb that streams, as a function of x, z, v and the other arguments."""
    return {
        "pairwise": lambda x, z, v, **o: mc.pairwise(GAUSS, x, z, b=2.0, **o),
        "kernel_matrix": lambda x, z, v, **o: mc.kernel_matrix(GAUSS, x, z, b=2.0, **o),
        "cdist": lambda x, z, v, **o: mc.cdist(x, z, p=1.3, **o),
        "seuclidean": lambda x, z, v, **o: mc.cdist(x, z, metric="seuclidean", **o),
        "kernel_product": lambda x, z, v, **o: mc.kernel_product(GAUSS, x, z, v, b=2.0, **o),
        "kernel_reduce": lambda x, z, v, **o: mc.kernel_reduce("sum(x*z)", x, z, "logsumexp", **o),
        "argmax": lambda x, z, v, **o: mc.kernel_reduce(GAUSS, x, z, "argmax", b=2.0, **o),
        "knn": lambda x, z, v, **o: mc.knn("sum(abs(x-z))", x, z, 5, **o),
        "kernel_gradient": lambda x, z, v, **o: mc.kernel_gradient(
            GAUSS, x, z, v.T, b=2.0, **o
        ),
    }  # fmt: skip


def results(made):
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("verb", calls())
@pytest.mark.parametrize("kind", ["numpy", "torch", "memmap"])
def test_every_verb(verb, kind, cuda, tmp_path):
    call = calls()[verb]
    for dtype in ("float32", "float64"):
        x, z, v = arrays(dtype)
        expected = results(call(x, z, v))
        if kind == "memmap":
            z.tofile(tmp_path / "z")
            z = np.memmap(tmp_path / "z", dtype=dtype, mode="r", shape=(N, K))
        given = [torch.from_numpy(a) for a in (x, z, v)] if kind == "torch" else [x, z, v]
        for own, wanted in zip(results(call(*given, device="cuda")), expected, strict=True):
            assert type(own) is (torch.Tensor if kind == "torch" else np.ndarray)
            assert_close(np.asarray(own), wanted, 1e-5 * abs(wanted).max() + 1e-30)


def test_outputs_on_either_side(cuda):
    x, z, v = arrays()
    expected = mc.kernel_product(GAUSS, x, z, v, b=2.0)
    there = torch.zeros(3, M, device="cuda").T
    here = np.zeros((M, 6), np.float32)[:, ::2]
    for out in (there, here):
        assert mc.kernel_product(GAUSS, x, z, v, b=2.0, out=out, device=0) is out
    assert_close(there.cpu().numpy(), expected, 1e-4)
    assert_close(here, expected, 1e-4)


def test_other_dtypes_and_strides(cuda):
    x, z, _ = arrays()
    for dtype in ("float16", "uint8"):
        a, b = (np.abs(4 * array).astype(dtype) for array in (x, z))
        expected = mc.cdist(a, b, p=1)
        assert_close(mc.cdist(a[::2, ::-1], b[:, ::-1], p=1, device="cuda"), expected[::2], 1e-3)


def test_ctrl_c_ends_a_call(cuda):
    random = np.random.default_rng(0)
    x = random.standard_normal((400_000, 64), dtype=np.float32)
    v = np.ones(len(x), np.float32)
    call = "sum(abs(x-z)^1.7)"
    mc.kernel_product(call, x[:1000], x, v, device="cuda")  # compiled

    def repeat():
        for _ in range(1000):
            mc.kernel_product(call, x, x, v, device="cuda")

    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            repeat()
    finally:
        signal.signal(signal.SIGINT, before)


def test_refusals():
    """Before a GPU is asked for: everywhere."""
    x, z, v = arrays()
    for device in ("cpu", "cuda:x", "cuda:-1", -1, True, 1.5):
        with pytest.raises(ValueError, match="device must be"):
            mc.pairwise(GAUSS, x, z, b=2.0, device=device)
    with pytest.raises(NotImplementedError, match="x must have no batch axes"):
        mc.pairwise(GAUSS, x[None], z, b=2.0, device="cuda")
    with pytest.raises(NotImplementedError, match="b must have no batch axes"):
        mc.kernel_product(GAUSS, x, z, v, b=[1.0, 2.0], device="cuda")
    with pytest.raises(ValueError, match="one row per point"):
        mc.kernel_product(GAUSS, x, z, v[1:], b=2.0, device="cuda")
    with pytest.raises(NotImplementedError, match="device= is an option of pairwise"):
        mc.kernel_agop(GAUSS, x, z, v.T, b=2.0, device="cuda")
    with pytest.raises(NotImplementedError, match="device= is an option of pairwise"):
        mc.gradient_field("x-z", x, z, np.ones((M, N), np.float32), v.T, device=0)
    with pytest.raises(NotImplementedError, match="Received a workspace"):
        mc.cdist(x, z, workspace=np.zeros(9, np.uint8), device="cuda")
    tracked = torch.from_numpy(x).requires_grad_()
    with pytest.raises(NotImplementedError, match="without gradients"):
        mc.cdist(tracked, torch.from_numpy(z), device="cuda")


def test_jax_and_torch_compile_are_refused():
    x, z, _ = arrays()
    jax = pytest.importorskip("jax.numpy")
    with pytest.raises(NotImplementedError, match="Received an array of jax"):
        mc.cdist(jax.asarray(x), jax.asarray(z), device="cuda")
    traced = torch.compile(
        lambda a, b: mc.cdist(a, b, device="cuda"), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match=r"device= is not offered under torch\.compile"):
        traced(torch.from_numpy(x), torch.from_numpy(z))


def test_scratch_memory_is_the_calls_own():
    x, z, _ = arrays()
    assert mc.workspace_size("cdist", x, z, device="cuda") == 0


def test_a_parameter_of_that_name_is_bound_beforehand():
    x, z, _ = arrays()
    f = mc.parse("sum(abs(x-z))*device").bind(device=2.0)
    assert_close(mc.pairwise(f, x, z), 2 * mc.cdist(x, z, p=1), 1e-4)


@pytest.mark.parametrize("view", [lambda z: z, lambda z: z[3:], lambda z: np.asarray(z)[::2]])
def test_a_file_that_shrank(view, tmp_path):
    x, z, _ = arrays()
    path = tmp_path / "z"
    z.tofile(path)
    mapped = np.memmap(path, dtype=np.float32, mode="r", offset=16, shape=(N - 4, K))
    with path.open("r+b") as file:
        file.truncate(64)
    with pytest.raises(ValueError, match=r"the file of z must have the \d+ bytes.*of 64 bytes"):
        mc.knn("sum(abs(x-z))", x, view(mapped), 2, device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    x, z, _ = arrays()
    with pytest.raises(NotImplementedError, match="CUDA"):
        mc.pairwise(GAUSS, x, z, b=2.0, device="cuda")
