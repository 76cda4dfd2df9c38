"""mercer.workspace_size: exactly what a call takes as workspace=."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

TEXT = "exp(-sum(abs(x-z))/b)"


def arrays(make):
    """Points, right-hand sides, coefficients."""
    return make((300, 90)), make((200, 90)), make((200, 3)), make((200,)), make((300, 200))


def calls(make):
    """A row for each verb: its name, its arguments, its options."""
    x, z, v, coef, amplitude = arrays(make)
    return [
        ("pairwise", (TEXT, x, z), {"b": 2.0}),
        ("pairwise", (TEXT, x), {"b": [1.0, 2.0]}),
        ("kernel_matrix", (TEXT, x), {"b": 2.0}),
        ("cdist", (x, z), {"p": 1.3}),
        ("kernel_product", (TEXT, x, z, v), {"b": 2.0}),
        ("kernel_reduce", (TEXT, x, z, "argmin"), {"b": 2.0}),
        ("knn", (TEXT, x, z, 5), {"b": 2.0}),
        ("kernel_gradient", (TEXT, x, z, coef), {"b": 2.0}),
        ("kernel_agop", (TEXT, x, z, coef), {"b": 2.0}),
        ("gradient_field", ("x - z", x, z, amplitude, coef), {}),
    ]


def test_is_zero_on_the_cpu():
    for verb, arguments, options in calls(lambda shape: np.ones(shape, "f")):
        assert mc.workspace_size(verb, *arguments, **options) == 0


def test_arguments_are_checked():
    x = np.ones((4, 4), "f")
    with pytest.raises(ValueError, match=r"verb must be one of pairwise, .*Received \"knm\""):
        mc.workspace_size("knm", "l1", x)
    with pytest.raises(ValueError, match="kernel_product: v must have one row per point of z"):
        mc.workspace_size("kernel_product", "l1", x, None, np.ones(3, "f"))
    with pytest.raises(ValueError, match="out must have shape"):
        mc.workspace_size("pairwise", "l1", x, out=np.ones((4, 3), "f"))


def test_no_output_is_made_however_large():
    x = np.ones((1 << 20, 2), "f")
    assert mc.workspace_size("pairwise", "l1", x) == 0


def test_calls_after_it_run():
    x = np.ones((4, 4), "f")
    with pytest.raises(ValueError, match="no parameter"):
        mc.workspace_size("pairwise", "l1", x, q=1)
    np.testing.assert_array_equal(mc.pairwise("l1", x), np.zeros((4, 4)))


def meta(shape):
    return pytest.importorskip("torch").empty(shape, device="meta")


def shape_and_dtype(shape):
    return shape, "float32"


def jax_outline(shape):
    jax = pytest.importorskip("jax")
    return jax.ShapeDtypeStruct(shape, jax.numpy.float32)


LINALG = [
    ("cholesky", 1, {}), ("cho_solve", 2, {}), ("solve_cholesky", 2, {"jitter": 1e-3}),
    ("cho_inverse", 1, {}), ("cho_inverse_diagonal", 1, {}), ("solve_triangular", 2, {}),
    ("inv_quad_logdet", 2, {}), ("lu_factor", 1, {}), ("solve_lu", 2, {}), ("eigh", 1, {}),
    ("eigh", 1, {"subset_by_index": (0, 3)}),
]  # fmt: skip


def more_calls(make):
    """Linear algebra, Kronecker products, parameters and outputs that are arrays."""
    x, z = make((300, 90)), make((200, 90))
    for verb, count, options in LINALG:
        for batch in ((), (3,)):
            yield verb, (make((*batch, 300, 300)), make((300, 4)))[:count], options
    yield "pairwise", (TEXT, x, z), {"b": make((5,))}
    yield "pairwise", (TEXT, x, z), {"b": 2.0, "out": make((300, 200))}
    yield "knn", ("l1", make((2, 300, 90)), z, 5), {}
    for verb, order in (("kron.matmul", 1), ("kron.kron_matmul", -1)):
        arguments = (make((96, 96)), [make((8, 12)), make((12, 8))])
        yield verb, arguments[::order], {"y": make((96, 96)), "beta": 1}


@pytest.mark.parametrize("describe", [meta, shape_and_dtype, jax_outline])
def test_descriptions_say_what_arrays_say(describe):
    def ones(shape):
        return np.ones(shape, "f")

    described = [*calls(describe), *more_calls(describe)]
    for (verb, arguments, options), (_, given, words) in zip(
        described, [*calls(ones), *more_calls(ones)], strict=True
    ):
        size = mc.workspace_size(verb, *arguments, device="cpu", **options)
        assert size == mc.workspace_size(verb, *given, **words), verb
        assert verb.startswith("kron") == (size > 0)


def test_a_meta_tensor_is_one_array():
    torch = pytest.importorskip("torch")
    x, fs = torch.empty(96, 96, device="meta"), [meta((8, 8)), meta((12, 12))]
    real = torch.ones(96, 96)
    in_place = mc.workspace_size("kron.matmul", x, fs, out=x, device="cpu")
    factors = [torch.ones(8, 8), torch.ones(12, 12)]
    assert in_place == mc.workspace_size("kron.matmul", real, factors, out=real)
    a = torch.empty(9, 9, dtype=torch.float64, device="meta").mT
    assert mc.workspace_size("solve_lu", a, a, overwrite_b=False, device="cpu") == 0
    with pytest.raises(ValueError, match="x must not overlap a"):
        mc.workspace_size("solve_lu", a, meta((9, 9)).double(), out=a, device="cpu")


def test_descriptions_are_checked():
    x = ((4, 3), "float32")
    for device in ({}, {"device": "gpu"}, {"device": "cuda:x"}):
        with pytest.raises(ValueError, match='device must be "cpu", "cuda" or "cuda:0"'):
            mc.workspace_size("pairwise", "l1", x, **device)
    with pytest.raises(mc.DtypeError, match=r"x must be float16.*Received complex64"):
        mc.workspace_size("pairwise", "l1", ((4, 3), np.complex64), device="cpu")
    with pytest.raises(mc.DtypeError, match=r"a dtype must be one of arrays. Received 'flaot'"):
        mc.workspace_size("pairwise", "l1", ((4, 3), "flaot"), device="cpu")
    with pytest.raises(mc.DtypeError, match="must have one dtype"):
        mc.workspace_size("pairwise", "l1", x, ((4, 3), "float64"), device="cpu")
    with pytest.raises(ValueError, match="no axis may be shorter than 0"):
        mc.workspace_size("pairwise", "l1", ((-4, 3), "float32"), device="cpu")
    with pytest.raises(ValueError, match="same number of features"):
        mc.workspace_size("pairwise", "l1", x, ((4, 2), "float32"), device="cpu")


def test_device_stays_a_parameter_of_formulas():
    """Some verbs have no option of that name."""
    x, coef = np.ones((4, 4), "f"), np.ones(4, "f")
    f = "device*sum(abs(x-z))"
    assert mc.workspace_size("kernel_agop", f, x, None, coef, device=2.0) == 0


def test_descriptions_say_what_arrays_on_cuda_say():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for describe in (meta, shape_and_dtype):
        rows = [*calls(describe), *more_calls(describe)]
        real = [
            *calls(on_cuda := lambda shape: torch.rand(shape, device="cuda")),
            *more_calls(on_cuda),
        ]
        for (verb, arguments, options), (_, given, words) in zip(rows, real, strict=True):
            size = mc.workspace_size(verb, *arguments, device="cuda", **options)
            assert size == mc.workspace_size(verb, *given, **words), verb


def test_is_exact_on_cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for verb, arguments, options in calls(lambda shape: torch.rand(shape, device="cuda")):
        size = mc.workspace_size(verb, *arguments, **options)
        assert size > 0
        memory = torch.empty(size, dtype=torch.uint8, device="cuda")
        getattr(mc, verb)(*arguments, workspace=memory, **options)
        with pytest.raises(ValueError, match=f"at least {size} bytes. Received {size - 1}"):
            getattr(mc, verb)(*arguments, workspace=memory[:-1], **options)


def test_jax_has_none():
    jax = pytest.importorskip("jax")
    with pytest.raises(NotImplementedError, match="workspace_size is not offered for arrays"):
        mc.workspace_size("pairwise", "l1", jax.numpy.ones((4, 4)))
