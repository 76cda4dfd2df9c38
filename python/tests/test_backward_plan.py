"""PyTorch: a backward runs the passes that the engine planned, one after the other."""

from __future__ import annotations

import random

import mercer as mc
import pytest
from mercer import _mercer

torch = pytest.importorskip("torch")
from torch_table import every_device  # noqa: E402

FORMULAS = [
    "exp(-sum((x-z)^2)/h)", "exp(-sum(w*(x-z)^2)/h)*b", "sum(x*z)", "sum(w^2*x*z)*row",
    "exp(-sum(abs(x-z))/h)*row+col*b", "sum(abs(x-z)^p)^(1/p)*h", "exp(-sum(abs(x-z)^w)/h)",
    "sum(x*z)/sqrt(sum(x*x)*sum(z*z))", "exp(-sum((x-z)^2)/h)*sum(x)*b", "tanh(sum(x*z)*h+b)",
    "a1*exp(-sum((x-z)^2)/a2)+a3*sum(x*z)+a4*cos(sum(x-z)*a5)+a6*row+a7*col+a8+a9*sum(x)+a0",
]  # fmt: skip
# The operators that a pass calls, of those that are no operations on matrices.
OPERATORS = {
    "product_backward": ["product_backward"], "pairwise_backward": ["pairwise_backward"],
    "field": ["field"], "direction": ["field"], "product": ["product"], "linear_form": [],
    "linear_form_by_pass": ["pairwise_backward"], "point_form": [], "point_form_back": [],
    "both_sides": [],
}  # fmt: skip


@pytest.fixture
def watched(monkeypatch):
    """The lists that were planned, the operators that were called in backwards, and what passes of
    the engine were asked for and did not have."""
    mc.pairwise("sum(x*z)", torch.ones(2, 2, requires_grad=True))  # registers the operators
    from mercer._torch import passes, table

    planned, called, refused = [], [], []
    plan, unfollowed = passes.plan, _mercer.unfollowed

    def planning(*arguments):
        planned.append(plan(*arguments))
        return planned[-1]

    def calling(verb, *arguments, **options):
        found = unfollowed(verb, *arguments, **options)
        if verb in ("product_backward", "pairwise_backward"):
            names, *product, _, by_w = arguments[5 if verb == "product_backward" else 4 :]
            if arguments[1].is_cuda:  # which knows of the product when the pass is asked
                product = [part is not None for part in found[2:-1]]
            has = [part is not None for part in found]
            refused.extend([verb] if has != [True, bool(names), *product, by_w] else [])
        return found

    monkeypatch.setattr(passes, "plan", planning)
    monkeypatch.setattr(_mercer, "unfollowed", calling)
    for name, function in table.FUNCTIONS.items():
        counted = lambda *a, name=name, f=function: called.append(name) or f(*a)  # noqa: E731
        monkeypatch.setitem(table.FUNCTIONS, name, counted)
    return planned, called, refused


def _call(draw, m, n, k, tensor):
    """A call of a verb, its tensors by name, and which verb it is."""
    f = draw.choice(FORMULAS)
    read = set(_mercer.leaves(mc.parse(f)))
    is_one_side = draw.random() < 0.4
    n = m if is_one_side else n
    given = {"x": tensor(m, k)} if is_one_side else {"x": tensor(m, k), "z": tensor(n, k)}
    sides = {"w": (k,), "row": (m,), "col": (n,)}
    given |= {leaf: tensor(*size) for leaf, size in sides.items() if leaf in read}
    if is_one_side and {"row", "col"} <= read and draw.random() < 0.5:
        given["col"] = given["row"]
    numbers = {name: 1.5 for name in mc.parse(f).parameters if draw.random() < 0.3}
    names = [name for name in mc.parse(f).parameters if name not in numbers]
    given |= {name: tensor() for name in names}
    options = {name: t for name, t in given.items() if name not in "xz"} | numbers
    verb = draw.choice(["kernel_product", "pairwise", "sum"])
    if verb == "kernel_product":
        given["v"] = tensor(n, draw.choice([1, 3, 18]))
        call = lambda: mc.kernel_product(f, given["x"], given.get("z"), given["v"], **options)  # noqa: E731
    elif verb == "pairwise":
        call = lambda: mc.pairwise(f, given["x"], given.get("z"), **options)  # noqa: E731
    else:
        call = lambda: mc.kernel_reduce(f, given["x"], given.get("z"), "sum", **options)  # noqa: E731
    return call, given, verb


@every_device
@pytest.mark.parametrize("seed", range(8))
def test_a_backward_runs_its_list(seed, device, watched, monkeypatch):
    from mercer._torch import passes

    planned, called, refused = watched
    draw, noise = random.Random(seed), torch.Generator().manual_seed(seed)

    def tensor(*shape, dtype=torch.float64):
        return (torch.rand(shape, generator=noise, dtype=dtype) + 0.5).to(device)

    for _ in range(25):
        dtype = draw.choice([torch.float32, torch.float64])
        m, n, k = (draw.choice([1, 5, 12, 20]) for _ in range(3))
        monkeypatch.setattr(passes, "POINTS", draw.choice([0, 2]))
        call, given, verb = _call(draw, m, n, k, lambda *s, d=dtype: tensor(*s, dtype=d))
        inputs = [t for t in given.values() if draw.random() < 0.7] or [given["x"]]
        inputs = list({id(t): t.requires_grad_() for t in inputs}.values())
        out = call()
        planned.clear(), called.clear()
        is_recorded = draw.random() < 0.3
        torch.autograd.grad(out, inputs, torch.ones_like(out), create_graph=is_recorded)
        (steps,) = planned
        verbs = [step.verb for step in steps]
        assert not refused
        assert not is_recorded or not {"product_backward", "pairwise_backward", "both_sides"} & set(
            verbs
        )
        sums = "pairwise" if verb == "pairwise" else "product"
        expected = [name for v in verbs for name in OPERATORS.get(v, [sums])]
        # Other points, and factors of w, are formulas that operators compute too.
        has_more = any(step.without_weight or "_form" in step.verb for step in steps)
        kinds = ("product_backward", "pairwise_backward") if has_more else OPERATORS.keys() | {sums}
        assert [name for name in called if name in kinds] == [n for n in expected if n in kinds]


def _plan(f, weights="factors", wanted="x z v", sizes=(50, 60, 20), columns=3, doubles=False,
          device=-1, facts="", **others):  # fmt: skip
    options = {"along": "", "arrays": ""} | others
    along, arrays = options.pop("along"), options.pop("arrays")
    return _mercer.plan_backward(
        mc.parse(f), weights, wanted, *sizes, columns, doubles, device, facts, along, arrays,
        **options,
    )  # fmt: skip


def _short(passes):
    return [(verb, rows, " ".join(by), " | ".join(yields)) for verb, rows, by, yields, *_ in passes]


GAUSS = "exp(-sum((x-z)^2)/h)"


@pytest.mark.parametrize(
    ("request_", "passes"),
    [
        ({"wanted": "x z v p:h"}, [("product_backward", "x", "p:h", "x | p:h"),
                                   ("product_backward", "z", "", "z | v")]),
        ({"wanted": "x v p:h", "facts": "same_points same_row same_offsets"},
         [("product_backward", "both", "p:h", "x | p:h | v")]),
        ({"wanted": "x v", "facts": "same_points"}, [("product_backward", "x", "", "x"),
                                                     ("product_backward", "z", "", "x | v")]),
        ({"wanted": "x p:h", "facts": "recorded"}, [("field", "x", "x", "x"),
                                                    ("sums", "x", "p:h", "p:h")]),
        ({"wanted": "p:h v"}, [("sums", "x", "p:h", "p:h"), ("product", "z", "", "v")]),
        ({"wanted": "x z", "weights": "matrix"}, [("pairwise_backward", "x", "", "x"),
                                                  ("pairwise_backward", "z", "", "z")]),
        ({"wanted": "x z v", "facts": "in_memory"}, [("both_sides", "x", "", "x | z | v")]),
        ({"wanted": "x z", "weights": "matrix", "facts": "in_memory"},
         [("both_sides", "x", "", "x | z")]),
        ({"wanted": "x v", "facts": "in_memory"}, [("product_backward", "x", "", "x"),
                                                   ("product", "z", "", "v")]),
        ({"wanted": "x z p:h", "weights": "matrix", "facts": "in_memory"},
         [("pairwise_backward", "x", "p:h", "x | p:h"), ("pairwise_backward", "z", "", "z")]),
        ({"wanted": "x z", "facts": "in_memory recorded"}, [("field", "x", "x", "x"),
                                                            ("field", "x", "z", "z")]),
        ({"wanted": "x z", "weights": "other", "facts": "same_points same_row same_offsets"},
         [("field", "both", "x", "x")]),
        ({"wanted": "x", "sizes": (50, 60, 1), "columns": 1}, [("field", "x", "x", "x")]),
        ({"wanted": "x", "sizes": (50, 60, 1), "columns": 1, "device": 0},
         [("product_backward", "x", "", "x")]),
        ({"wanted": "x", "device": 0, "facts": "tiny_items"}, [("field", "x", "x", "x")]),
        ({"wanted": "x d:0", "along": "x"}, [("field", "x", "x", "x"),
                                             ("direction", "x", "0", "d:0")]),
    ],
)  # fmt: skip
def test_plans_of_a_gauss_kernel(request_, passes):
    assert _short(_plan(GAUSS, **request_)) == passes


def test_names_that_a_pass_does_not_take():
    """Exponents that are numbers, and more than eight names."""
    f = "sum(abs(x-z)^p)*h"
    assert _short(_plan(f, wanted="x p:p p:h")) == [
        ("product_backward", "x", "", "x"), ("sums", "x", "p:p", "p:p"), ("sums", "x", "p:h", "p:h")
    ]  # fmt: skip
    assert _short(_plan(f, wanted="x p:p p:h", arrays="p")) == [
        ("product_backward", "x", "p:p p:h", "x | p:p | p:h")
    ]
    names = [f"a{i}" for i in range(10)]
    f = "sum(x*z)*(" + "+".join(names) + "+1)+row"
    wanted = "x z row " + " ".join(f"p:{name}" for name in names)
    first, second = _plan(f, wanted=wanted, facts="row")
    assert first[2] == (*(f"p:{name}" for name in names[:7]), "row")
    assert second[2] == tuple(f"p:{name}" for name in names[7:])


@pytest.mark.parametrize("choice", [1, 2])
@pytest.mark.parametrize(
    "f", [GAUSS, "r = sqrt(sum((x-z)^2))/h; (1+r)*exp(-r)", "tanh(sum(x*z)/h)*row+col"]
)
def test_both_sides_at_once_are_those_of_a_recorded_backward(f, choice, monkeypatch):
    """Gradients with factors, with a matrix, of a batch that shares x, and by passes in vmap."""
    from mercer._torch import passes

    monkeypatch.setattr(passes, "BOTH_SIDES", choice)
    noise = torch.Generator().manual_seed(1)

    def tensor(*shape):
        return torch.rand(shape, generator=noise, dtype=torch.float64)

    x, z, v = (t.requires_grad_() for t in (tensor(7, 3), tensor(2, 9, 3), tensor(2, 9, 4)))
    sides = {"row": tensor(7), "col": tensor(9)} if "row" in f else {}
    product = mc.kernel_product(f, x, z, v, h=1.5, **sides).sin().sum()
    values = mc.pairwise(f, x, z, h=1.5, **sides).sin().sum()
    for out, inputs in ((product, [x, z, v]), (values, [x, z])):
        found = torch.autograd.grad(out, inputs, retain_graph=True)
        expected = torch.autograd.grad(out, inputs, create_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=1e-12)

    def by_points(x, z):
        return mc.pairwise(f, x, z, h=1.5, **sides).sin().sum()

    mapped = torch.func.vmap(torch.func.grad(by_points, (0, 1)), (None, 0))(x.detach(), z.detach())
    torch.testing.assert_close(mapped[0].sum(0), found[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mapped[1], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("j_offset", [0, 3])
def test_indices_tell_the_sides_of_other_points_apart(j_offset, monkeypatch):
    from mercer._torch import passes

    monkeypatch.setattr(passes, "POINTS", 2)
    f = "sum(x*z)/sqrt(sum(x*x)*sum(z*z))*exp(-abs(i-j)/4)"
    x, v = torch.rand(9, 5, dtype=torch.float64, requires_grad=True), torch.rand(9, 2).double()
    out = mc.kernel_product(f, x, None, v, j_offset=j_offset)
    (found,) = torch.autograd.grad(out.sin().sum(), x, retain_graph=True)
    (expected,) = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("device", "is_taken"), [(-1, True), (0, False)])
def test_points_of_a_cosine_pay_by_the_row_of_the_device(device, is_taken):
    f, sizes = "sum(x*z)/sqrt(sum(x*x)*sum(z*z))", (1000, 1000, 64)
    passes = _plan(f, sizes=sizes, device=device)
    assert (passes[0][0] == "point_form") == is_taken
    for choice, expected in ((1, False), (2, True)):
        passes = _plan(f, sizes=sizes, device=device, points=choice)
        assert (passes[0][0] == "point_form") == expected


def test_a_matrix_times_points_is_a_pass_where_that_is_sooner():
    """Only CUDA's float32 has it; BLAS serves elsewhere, and a product u v' is never a matrix."""
    for weights, doubles, device, is_pass in (
        ("matrix", False, 0, True), ("matrix", True, 0, False), ("matrix", False, -1, False),
        ("factors", False, 0, False),
    ):  # fmt: skip
        passes = _plan("sum(x*z)", weights, "x z", doubles=doubles, device=device)
        verb = "linear_form_by_pass" if is_pass else "linear_form"
        assert [step[0] for step in passes] == [verb] * 2


def test_weights_of_few_features_are_sums_in_float32():
    f = "exp(-sum(w*(x-z)^2))"
    few, many = ((50, 60, k) for k in (16, 17))
    for sizes, doubles, is_made in ((few, False, False), (few, True, True), (many, False, True)):
        passes = _plan(f, wanted="x z w", sizes=sizes, doubles=doubles, facts="w")
        assert [step[-1] for step in passes] == [is_made] * 2
        assert "w" in passes[0][3]


NAMES = "a*exp(-sum((x-z)^2)/b)*c+row*col"


@pytest.mark.parametrize(
    ("request_", "passes"),
    [
        (("factors", "p:a p:b"), [("sums", "x", "p:a", "p:a"), ("sums", "x", "p:b", "p:b")]),
        (("factors", "p:a p:b p:c"), [("product_backward", "x", "p:a p:b p:c",
                                       " | p:a | p:b | p:c")]),
        (("matrix", "p:a"), [("sums", "x", "p:a", "p:a")]),
        (("matrix", "p:a", 16), [("pairwise_backward", "x", "p:a", " | p:a")]),
        (("factors", "x p:a", 20, "same_points same_offsets same_row"),
         [("product_backward", "both", "p:a", "x | p:a")]),
        (("matrix", "z p:a col"), [("pairwise_backward", "z", "p:a row", "z | p:a | col")]),
        (("matrix", "x z row", 0), [("sums", "x", "row", "row")]),
    ],
)  # fmt: skip
def test_plans_of_parameter_gradient(request_, passes):
    weights, wanted, k, facts = (*request_, *(20, "")[len(request_) - 2 :])
    found = _mercer.plan_parameter_gradient(
        mc.parse(NAMES), weights, wanted, 50, 60, k, -1, facts, ""
    )
    assert _short(found) == passes


def test_explain_and_dump(capfd, monkeypatch):
    text = mc.explain(GAUSS, (50, 60, 20), backward=True)
    assert text.endswith(
        "## backward of pairwise, by x z p:h\n"
        "pairwise_backward, rows x, by p:h -> x p:h\npairwise_backward, rows z -> z\n\n"
        "## backward of kernel_product, by x z p:h v\n"
        "product_backward, rows x, by p:h -> x p:h\n"
        "product_backward, rows z, with the product -> z v\n\n"
    )
    assert "backward" not in mc.explain(GAUSS, (50, 60, 20))
    monkeypatch.setenv("MERCER_DUMP", "plan")
    _plan(GAUSS, wanted="x")
    assert capfd.readouterr().err.startswith("## backward of exp(")


def test_a_plan_of_a_traced_call_serves_other_sizes():
    """A plan takes the sizes of the call that is traced, sets no limits to them, and does without
    one that depends on the data."""
    import torch._dynamo
    from torch._dynamo.testing import CompileCounterWithBackend

    def total(x, z, v, h, wanted):
        return mc.kernel_product(GAUSS, x[wanted], z, v, h=h).sin().sum()

    counter, counts = CompileCounterWithBackend("aot_eager"), []
    compiled = torch.compile(total, backend=counter, dynamic=True, fullgraph=True)
    for m, n, k in ((20, 15, 6), (33, 18, 9)):
        inputs = [torch.rand(*shape, dtype=torch.float64, requires_grad=True)
                  for shape in ((m, k), (n, k), (n, 2))]  # fmt: skip
        inputs.append(torch.tensor(2.0, dtype=torch.float64, requires_grad=True))
        wanted = torch.arange(m) % 3 > 0
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            found = torch.autograd.grad(compiled(*inputs, wanted), inputs)
        expected = torch.autograd.grad(total(*inputs, wanted), inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        counts.append(counter.frame_count)
    assert counts[0] == counts[1]
