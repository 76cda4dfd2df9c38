"""torch.cdist and torch.pdist under mercer.patch: PyTorch's documented behaviour, case by case."""

from __future__ import annotations

import itertools
import math
import pickle
import threading

import mercer as mc
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.fx.experimental.proxy_tensor")

NORMS = (0, 0.5, 1, 1.5, 2, 2.5, 3, math.inf)
MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)
ORIGINALS = (torch.cdist, torch.pdist)


@pytest.fixture(autouse=True)
def untouched():
    torch.manual_seed(0)
    yield
    mc.unpatch()
    assert (torch.cdist, torch.pdist) == ORIGINALS


@pytest.fixture
def patched():
    """Counts the calls that came to Mercer."""
    served = []
    cdist, pdist = mc.cdist, mc.pdist
    with pytest.MonkeyPatch.context() as swap:
        swap.setattr(mc, "cdist", lambda *a, **k: (cdist(*a, **k), served.append(1))[0])
        swap.setattr(mc, "pdist", lambda *a, **k: (pdist(*a, **k), served.append(1))[0])
        with mc.patch("torch"):
            yield served


def brute(x, z, p):
    """Distances by the definition, in float64."""
    gaps = (x.double()[..., :, None, :] - z.double()[..., None, :, :]).abs()
    if p == 0:
        return (gaps != 0).sum(-1).double()
    if p == math.inf:
        return gaps.amax(-1) if gaps.shape[-1] else gaps.sum(-1)
    return (gaps**p).sum(-1) ** (1 / p)


def points(*shape, dtype=torch.float64, grad=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("mode", MODES)
def test_norms(patched, p, mode):
    for rows, columns, features in itertools.product((3, 6), (4, 5), (1, 7)):
        x, z = points(rows, features), points(columns, features)
        found = torch.cdist(x, z, p, compute_mode=mode)
        torch.testing.assert_close(found, brute(x, z, p), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.cdist(x, x, p=p), brute(x, x, p), rtol=1e-12, atol=1e-12)
    assert len(patched) == 16


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 4, 5), (2, 3, 6, 5)), ((2, 1, 4, 5), (3, 6, 5)), ((4, 5), (2, 6, 5)),
        ((1, 4, 5), (7, 6, 5)), ((0, 5), (6, 5)), ((4, 5), (0, 5)), ((0, 5), (0, 5)),
        ((4, 0), (6, 0)), ((0, 0), (0, 0)), ((2, 0, 4, 5), (0, 6, 5)), ((2, 4, 0), (2, 6, 0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("p", [0, 1.5, 2, math.inf])
def test_batches_and_sizes_of_zero(patched, left, right, p):
    x, z = points(*left), points(*right)
    found = torch.cdist(x, z, p=p)
    assert found.shape == ORIGINALS[0](x, z, p=p).shape
    torch.testing.assert_close(found, brute(x, z, p))
    assert len(patched) == 1


def test_strides_dtypes_and_devices_are_those_of_torch(patched):
    x, z = points(5, 4).mT, points(10, 10)[::2, ::2]
    for dtype in (torch.float32, torch.float64):
        found = torch.cdist(x.to(dtype), z[:, :5].to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), brute(x, z, 2), rtol=2e-6, atol=2e-6)
    assert found.is_contiguous()


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_gradients(patched, p):
    x, z = points(2, 4, 3, grad=True), points(5, 3, grad=True)
    cotangent = points(2, 4, 5)
    ours = torch.autograd.grad((torch.cdist(x, z, p=p) * cotangent).sum(), (x, z))
    theirs = torch.autograd.grad((ORIGINALS[0](x, z, p=p) * cotangent).sum(), (x, z))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert len(patched) == 1


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_second_gradients(patched, p):
    x, z = points(3, 2, grad=True), points(4, 2, grad=True)
    assert torch.autograd.gradcheck(lambda *a: torch.cdist(*a, p=p), (x, z))
    assert torch.autograd.gradgradcheck(lambda *a: torch.cdist(*a, p=p), (x, z))


@pytest.mark.parametrize("p", NORMS)
def test_gradients_of_coincident_points_are_zero(patched, p):
    x = points(3, 2)
    both = torch.cat([x, x]).requires_grad_()
    torch.cdist(both, x, p=p).diagonal().sum().backward()
    assert torch.equal(both.grad, torch.zeros(6, 2, dtype=torch.float64))


def test_nan_and_infinity(patched):
    x = torch.tensor([[0.0, math.nan], [math.inf, 1.0], [1.0, 2.0]])
    z = torch.tensor([[0.0, 1.0], [math.inf, 1.0]])
    for p in (0, 1, 1.5, 2, 3):
        mode = "donot_use_mm_for_euclid_dist"
        torch.testing.assert_close(
            torch.cdist(x, z, p, mode), ORIGINALS[0](x, z, p, mode), equal_nan=True
        )


def with_nan(*shape):
    x = points(*shape)
    x[0, 0], x[1, 1] = math.nan, math.inf
    return x


def test_the_largest_difference_is_that_of_torch_where_one_is_nan(patched):
    x, z = with_nan(4, 3), with_nan(5, 3)
    expected = ORIGINALS[0](x, z, math.inf)
    assert not expected.isnan().any()
    torch.testing.assert_close(torch.cdist(x, z, math.inf), expected)
    torch.testing.assert_close(torch.pdist(x, math.inf), ORIGINALS[1](x, math.inf), equal_nan=True)
    with torch.no_grad():
        assert torch.cdist(points(4, 3), z[2:], math.inf).shape == (4, 3)
    assert len(patched) == 3


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("tracer", ["compile", "vmap", "make_fx", "trace"])
def test_tracers_keep_the_largest_difference_of_torch(tracer):
    x, z = with_nan(4, 3), with_nan(5, 3)

    def largest(a, b):
        return torch.cdist(a, b, p=math.inf)

    call = {
        "compile": lambda: torch.compile(largest, backend="eager", fullgraph=True),
        "vmap": lambda: torch.vmap(lambda a, b: largest(a[None], b)[0], (0, None)),
        "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(largest)(x[2:], z[2:]),
        "trace": lambda: torch.jit.trace(largest, (x[2:], z[2:])),
    }[tracer]
    with mc.patch("torch.cdist"):
        found = call()(x, z)
    torch.testing.assert_close(found, ORIGINALS[0](x, z, math.inf))


@pytest.mark.parametrize(
    "arguments",
    [
        lambda x: (x, x, -1.0), lambda x: (x, x, math.nan), lambda x: (x, x, 2.0, "matrix"),
        lambda x: (x[0], x), lambda x: (x, x[:, :2]), lambda x: (x.long(), x.long()),
        lambda x: (x.half(), x.half()), lambda x: (x.float(), x),
        lambda x: (x.expand(2, 4, 3), x.expand(3, 4, 3)), lambda x: (x, [[1.0, 2.0, 3.0]]),
        lambda x: (x, None), lambda x: (x.to_sparse(), x), lambda x: (x, x, "2"),
    ],
)  # fmt: skip
def test_errors_are_those_of_torch(patched, arguments):
    given = arguments(points(4, 3))
    with pytest.raises(Exception) as theirs:
        ORIGINALS[0](*given)
    with pytest.raises(theirs.type) as ours:
        torch.cdist(*given)
    assert str(ours.value) == str(theirs.value)
    assert not patched


def test_what_mercer_does_not_serve_goes_to_torch(patched):
    x = points(4, 3)
    p = torch.tensor(1.5)
    torch.testing.assert_close(torch.cdist(x, x, p), ORIGINALS[0](x, x, p))
    assert torch.cdist(x.to("meta"), x.to("meta")).device.type == "meta"
    assert not patched


@pytest.mark.parametrize("second", [torch.bfloat16, torch.float32])
def test_autocast_computes_in_float32(patched, second):
    x, z = points(4, 3, dtype=torch.bfloat16, grad=True), points(5, 3).to(second)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = torch.cdist(x, z, p=1.5), ORIGINALS[0](x, z, p=1.5)
        assert torch.cdist(x.double(), x.double()).dtype == torch.float64
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    ours.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert len(patched) == 2


def test_under_compile():
    x, z = points(4, 3), points(5, 3)
    with mc.patch("torch.cdist"):
        compiled = torch.compile(
            lambda a, b: torch.cdist(a, b, p=1.3) + 1, backend="eager", fullgraph=True
        )
        torch.testing.assert_close(compiled(x, z), brute(x, z, 1.3) + 1)


def test_dynamo_first_used_within_a_patch():
    """Its table of functions, by their names at that time, has the originals again."""
    from torch._dynamo import trace_rules

    def distances(a, b):
        return torch.cdist(a, b, p=1.3) + torch.pdist(a).sum()

    x, z = points(4, 3), points(5, 3)
    expected = distances(x, z)
    trace_rules.get_torch_obj_rule_map.cache_clear()
    torch._dynamo.reset()
    with mc.patch("torch"):
        compiled = torch.compile(distances, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, z), expected)
        assert torch.cdist in trace_rules.get_torch_obj_rule_map()
    table = trace_rules.get_torch_obj_rule_map()
    assert all(original in table for original in ORIGINALS)
    assert not any(getattr(key, "__wrapped__", None) in ORIGINALS for key in table)
    torch.testing.assert_close(compiled(x, z), expected, rtol=0, atol=0)
    with mc.patch("torch"):
        torch.testing.assert_close(compiled(x, z), expected)


def test_under_vmap_and_of_subclasses(patched):
    x, z = points(4, 3), points(5, 3)
    rows = torch.vmap(lambda a: torch.cdist(a[None], z)[0])(x)
    torch.testing.assert_close(rows, brute(x, z, 2))

    class Named(torch.Tensor):
        pass

    found = torch.cdist(x.as_subclass(Named), z)
    assert type(found) is Named
    torch.testing.assert_close(found.as_subclass(torch.Tensor), brute(x, z, 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tracers_see_a_call_and_earlier_scripts_the_original():
    x, z = points(4, 3), points(5, 3)

    def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, b, p=1.5)

    expected, script = brute(x, z, 1.5), torch.jit.script(distances)
    with mc.patch("torch.cdist"):
        torch.testing.assert_close(script(x, z), expected)
        assert "mercer" not in str(script.inlined_graph)
        traced = torch.jit.trace(distances, (x, z))
        torch.testing.assert_close(traced(2 * x, 2 * z), 2 * expected)
        graph = torch.fx.experimental.proxy_tensor.make_fx(distances)(x, z).graph
        assert "mercer.pairwise" in str(graph)


def test_scripts_read_the_originals_within_a_block(patched):
    x, z = points(4, 3), points(5, 3)

    def distances(a: torch.Tensor, b: torch.Tensor):
        mode = "donot_use_mm_for_euclid_dist"
        return torch.cdist(a, b, p=1.5, compute_mode=mode), torch.pdist(a), torch.pdist(a, 3.0)

    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        script = torch.jit.script(distances)
    expected = ORIGINALS[0](x, z, 1.5), ORIGINALS[1](x), ORIGINALS[1](x, 3.0)
    torch.testing.assert_close(script(x, z), expected)
    assert not patched


@pytest.mark.parametrize("name", ["cdist", "pdist"])
def test_replacements_are_pickled_by_name(patched, name):
    replacement = getattr(torch, name)
    stored = pickle.dumps(replacement)
    assert pickle.loads(stored) is replacement
    assert replacement.__name__ == name
    assert replacement.__doc__ == ORIGINALS[name == "pdist"].__doc__
    mc.unpatch()
    assert pickle.loads(stored) is ORIGINALS[name == "pdist"]


@pytest.mark.parametrize("p", NORMS)
def test_pdist(patched, p):
    for shape in ((6, 3), (1, 3), (0, 3), (4, 0)):
        x = points(*shape)
        torch.testing.assert_close(torch.nn.functional.pdist(x, p), ORIGINALS[1](x, p))
    assert len(patched) == 4
    with pytest.raises(RuntimeError, match="pdist"):
        torch.pdist(points(2, 4, 3))


def test_every_name_of_the_function_is_replaced_and_comes_back():
    mc.patch("torch.cdist")
    assert torch.cdist is torch.functional.cdist is not ORIGINALS[0]
    assert torch.pdist is ORIGINALS[1]
    assert torch.cdist.__name__ == "cdist"
    mc.unpatch("torch.cdist")
    assert torch.cdist is torch.functional.cdist is ORIGINALS[0]
    mc.unpatch("torch.cdist")  # nothing to give back


def test_blocks_nest_and_the_last_one_restores():
    outer = mc.patch("torch.cdist")
    replacement = torch.cdist
    with outer:
        with mc.patch("torch"):
            assert torch.cdist is replacement
            assert torch.pdist is not ORIGINALS[1]
        assert torch.cdist is replacement
        assert torch.pdist is ORIGINALS[1]
    assert torch.cdist is ORIGINALS[0]
    mc.patch("torch.cdist")
    with mc.patch("torch.cdist"):
        pass
    assert torch.cdist is not ORIGINALS[0]  # for good
    with mc.patch("torch.cdist"):
        mc.unpatch("torch.cdist")
        assert torch.cdist is ORIGINALS[0]
        with mc.patch("torch.cdist"):
            pass
    assert torch.cdist is ORIGINALS[0]


def test_what_was_imported_within_a_block_is_the_original_after_it(patched):
    kept, x, z = (torch.cdist, torch.pdist), points(4, 3), points(5, 3)
    kept[0](x, z)
    assert len(patched) == 1
    mc.unpatch()
    torch.testing.assert_close(kept[0](x, z, p=1.5), ORIGINALS[0](x, z, 1.5))
    torch.testing.assert_close(kept[1](x), ORIGINALS[1](x))
    assert len(patched) == 1
    with mc.patch("torch.cdist"):
        assert torch.cdist is kept[0]
        kept[0](x, z)
        kept[1](x)
    assert len(patched) == 2


def test_a_patch_is_entered_again():
    made = mc.patch("torch.cdist")
    for _ in range(2):
        with made:
            assert torch.cdist is not ORIGINALS[0]
            with made:
                pass
            assert torch.cdist is not ORIGINALS[0]
        assert torch.cdist is ORIGINALS[0]
    with made:
        mc.unpatch()
        with made:
            assert torch.cdist is not ORIGINALS[0]
        assert torch.cdist is not ORIGINALS[0]
    assert torch.cdist is ORIGINALS[0]


def test_a_block_that_fails_restores():
    with pytest.raises(KeyError), mc.patch("torch"):
        raise KeyError
    assert torch.cdist is ORIGINALS[0]


def test_blocks_of_threads_overlap():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with mc.patch("torch.cdist"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with mc.patch("torch.cdist"):
        thread.start()
        assert entered.wait(10)
    assert torch.cdist is not ORIGINALS[0]
    leave.set()
    thread.join()
    assert torch.cdist is ORIGINALS[0]


@pytest.mark.parametrize("names", [("torch.matmul",), ("numpy.dot",), (3,), (), ("torch.",)])
def test_unknown_names(names):
    with pytest.raises(ValueError, match=r"functions of|torch\.cdist"):
        mc.patch(*names)
    if names:
        with pytest.raises(ValueError, match=r"^unpatch: "):
            mc.unpatch(*names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("p", NORMS)
def test_on_a_gpu(patched, p):
    x, z = points(2, 40, 7).cuda().requires_grad_(), points(30, 7).cuda()
    found = torch.cdist(x, z, p=p)
    torch.testing.assert_close(found, brute(x, z, p), rtol=1e-10, atol=1e-12)
    cotangent = torch.randn_like(found)
    theirs = ORIGINALS[0](x, z, p=p)
    for ours, other in zip(
        torch.autograd.grad((found * cotangent).sum(), x),
        torch.autograd.grad((theirs * cotangent).sum(), x), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(ours, other, rtol=1e-8, atol=1e-10)
    with torch.autocast("cuda", dtype=torch.float16):
        short = torch.cdist(x.half(), z.half(), p=p)
        expected = ORIGINALS[0](x.half(), z.half(), p=p)
    assert short.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(short, expected, rtol=1e-4, atol=1e-3)
    assert len(patched) == 2
    try:  # newer versions of PyTorch take them
        theirs = ORIGINALS[0](x.half(), z.half(), p=p)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            torch.cdist(x.half(), z.half(), p=p)
    else:
        assert torch.equal(torch.cdist(x.half(), z.half(), p=p), theirs)
