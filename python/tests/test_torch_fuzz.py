"""PyTorch: random formulas, verbs and nests of transforms.

What is compared with is the same formula written with PyTorch's own functions, in float64.

A seed gives a case. `make fuzz-torch` goes on with others (CONTRIBUTING.md).
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Callable
from typing import NamedTuple

import mercer as mc
import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402
from torch_table import every_device  # noqa: E402

CASES = int(os.environ.get("MERCER_FUZZ_CASES", "120"))
SEED = int(os.environ.get("MERCER_FUZZ_SEED", "1"))
M, N, K = 3, 3, 2


class Node(NamedTuple):
    """A part of a formula: its text, its value of the leaves by name, and which it reads."""

    text: str
    value: Callable
    reads: frozenset = frozenset()


def leaf(name):
    return Node(name, lambda of: of[name], frozenset({name}))


def made(text, function, *parts):
    """`text` with {0}, {1}, ... in place of the parts."""
    return Node(
        "(" + text.format(*(p.text for p in parts)) + ")",
        lambda of: function(*(p.value(of) for p in parts)),
        frozenset().union(*(p.reads for p in parts)),
    )


def safe(condition, function, otherwise):
    """function(a) where `condition`, whose other values do not reach a derivative."""

    def call(a, *others):
        holds = condition(a)
        inside = function(torch.where(holds, a, 1.0), *others)
        return torch.where(holds, inside, otherwise(a, *others))

    return call


def is_positive(a):
    return a > 0


def is_not_zero(a):
    return a != 0


def zero(a, *_):
    return torch.zeros_like(a)


root = safe(is_not_zero, torch.sqrt, zero)  # of no slope at 0


def power(p):
    return safe(is_not_zero, lambda a: a.abs() ** p, zero)


def over_features(function):
    """A reduction: of all features of the pair, whichever of them the term reads."""

    def node(text, term):
        def value(of):
            terms = term.value(of)
            shape = torch.broadcast_shapes(terms.shape, of["x"].shape[-1:])
            return function(terms.expand(shape)).unsqueeze(-1)

        return Node(f"{text}({term.text})", value, term.reads)

    return node


total = over_features(lambda t: t.sum(-1))
REDUCTIONS = {
    "sum": total,
    "max": over_features(lambda t: t.amax(-1)),
    "min": over_features(lambda t: t.amin(-1)),
    "logsumexp": over_features(lambda t: t.logsumexp(-1)),
    # PyTorch's own has third derivatives that are NaN where terms are 0.
    "prod": over_features(lambda t: functools.reduce(torch.mul, t.unbind(-1))),
}


class Formulas:
    def __init__(self, choose):
        self.choose = choose

    def pick(self, *makers):
        return self.choose.choice(makers)()

    def side(self):
        return leaf(self.choose.choice("xz"))

    def term(self, depth=1):
        """A term of a pair's features."""
        x, z, w = leaf("x"), leaf("z"), leaf("w")
        difference = made("{0}-{1}", torch.sub, x, z)
        p = self.choose.choice([0.7, 1.3, 1.5, 2.0, 3.0])
        makers = [
            lambda: made("{0}^2", torch.square, difference),
            lambda: made(f"abs({{0}})^{p}", power(p), difference),
            lambda: made("abs({0})", torch.abs, difference),
            lambda: made("{0}*{1}", torch.mul, x, z),
            lambda: self.side(),
            lambda: made("{0}*{1}", torch.mul, w, self.term(0)),
            lambda: made("{0}*{1}", torch.mul, self.side(), total("sum", self.side())),
        ]
        if depth:
            a, b = self.term(depth - 1), self.term(depth - 1)
            makers += [
                lambda: made("sin({0})", torch.sin, a),
                lambda: made("tanh({0})*{1}", lambda a, b: a.tanh() * b, a, b),
                lambda: made("max({0},{1})", torch.maximum, a, b),
                lambda: made("{0}+{1}", torch.add, a, b),
                lambda: self.branches(a, b),
            ]
        return self.pick(*makers)

    def branches(self, a, b):
        """The first of two where its function is defined, which is NaN elsewhere."""
        text, function = self.choose.choice(
            [("sqrt({0})", torch.sqrt), ("log({0})", torch.log), ("{0}^1.5", lambda a: a**1.5)]
        )
        chosen = safe(is_positive, lambda a, b: function(a), lambda a, b: b)
        if self.choose.random() < 0.5:
            return made(f"where({{0}}>0,{text},{{1}})", chosen, a, b)
        return made(f"where({{0}}<=0,{{1}},{text})", chosen, a, b)

    def reduction(self):
        text = self.choose.choice(["sum", "sum", "sum", *REDUCTIONS])
        return REDUCTIONS[text](text, self.term())

    def distance(self):
        squares = made("({0}-{1})^2", lambda a, b: (a - b) ** 2, leaf("x"), leaf("z"))
        return made("sqrt({0})", root, total("sum", squares))

    def of_a_branch(self, other):
        """A sum that is NaN in the branch that is not taken, with a condition of the pair."""
        a = self.side()
        terms = made("sqrt({0})", safe(is_positive, torch.sqrt, zero), a)
        least = REDUCTIONS["min"]("min", a)
        inside = total("sum", made("{0}*{1}", torch.mul, terms, leaf("z")))
        return made(
            "where({0}>0,{1},{2})", lambda c, a, b: torch.where(c > 0, a, b), least, inside, other
        )

    def pair(self, depth=3):
        if depth == 0:
            return self.pick(self.reduction, self.reduction, self.distance)
        a, b = self.pair(depth - 1), self.pair(self.choose.randrange(depth))
        h = leaf("h")
        makers = [
            lambda: made("exp(-{0}^2/{1})", lambda a, h: (-a * a / h).exp(), a, h),
            lambda: made("exp(-abs({0}))", lambda a: (-a.abs()).exp(), a),
            lambda: made("{0}/(1+{1}^2)", lambda a, b: a / (1 + b * b), a, b),
            lambda: made("{0}*{1}", torch.mul, a, b),
            lambda: made("{0}-{1}", torch.sub, a, b),
            lambda: made("tanh({0})", torch.tanh, a),
            lambda: made("log(1+{0}^2)", lambda a: (1 + a * a).log(), a),
            lambda: made("min({0},{1})", torch.minimum, a, b),
            lambda: made("{0}*{1}", torch.mul, leaf("row"), a),
            lambda: made("sin({0})+{1}", lambda c, a: c.sin() + a, leaf("col"), a),
            lambda: self.of_a_branch(a),
            lambda: self.branches(a, b),
        ]
        return self.pick(*makers)

    def __call__(self):
        f = self.pair(self.choose.randrange(1, 4))
        if {"x", "z"} <= f.reads:
            return f
        return made("{0}+{1}", torch.add, f, self.distance())


def pairs(f, given):
    """The matrix of the formula, of tensors by name."""
    of = {
        "x": given["x"].unsqueeze(-2),
        "z": given["z"].unsqueeze(-3),
        "w": given.get("w"),
        "row": given["row"][..., None, None] if "row" in given else None,
        "col": given["col"][..., None, :, None] if "col" in given else None,
        "h": given.get("h"),
    }
    values = f.value(of).squeeze(-1)
    return values.expand(*values.shape[:-2], M, N)


def slopes(f, given):
    rest = {name: t for name, t in given.items() if name not in ("x", "coef", "amplitude")}

    def weighted(x):
        weights = given["coef"].unsqueeze(-2) * given.get("amplitude", 1.0)
        return (weights * pairs(f, {"x": x, **rest})).sum((-1, -2))

    return jacrev(weighted)(given["x"])


def agop(f, given):
    fields = slopes(f, given).reshape(-1, K)
    return fields.mT @ fields


class Verb(NamedTuple):
    """What mercer calls, the same by PyTorch, and the shapes of what else it takes."""

    call: Callable
    plain: Callable
    others: dict


def by_name(verb, *options):
    def call(text, x, z, named):
        rest = [named.pop(name) for name in ("v", "coef") if name in named]
        return verb(text, x, z, *rest, *options, **named)

    return call


def field(text, x, z, named):
    f = mc.differentiate(text, "x")
    read = {*f.parameters, *re.findall(r"\w+", str(f)), "coef", "amplitude"}
    return mc.gradient_field(f, x, z, **{name: t for name, t in named.items() if name in read})


COEF = {"coef": (2, N)}
VERBS = {
    "pairwise": Verb(by_name(mc.pairwise), pairs, {}),
    "kernel_product": Verb(
        by_name(mc.kernel_product), lambda f, g: pairs(f, g) @ g["v"], {"v": (N, 2)}
    ),
    "sum": Verb(by_name(mc.kernel_reduce, "sum"), lambda f, g: pairs(f, g).sum(-1), {}),
    "max": Verb(by_name(mc.kernel_reduce, "max"), lambda f, g: pairs(f, g).amax(-1), {}),
    "logsumexp": Verb(
        by_name(mc.kernel_reduce, "logsumexp"), lambda f, g: pairs(f, g).logsumexp(-1), {}
    ),
    "knn": Verb(
        lambda *a: by_name(mc.knn, 2)(*a)[0], lambda f, g: pairs(f, g).sort(-1).values[..., :2], {}
    ),
    "kernel_gradient": Verb(by_name(mc.kernel_gradient), slopes, COEF),
    "gradient_field": Verb(field, slopes, COEF | {"amplitude": (M, N)}),
    "kernel_agop": Verb(by_name(mc.kernel_agop), agop, COEF),
}


def direction(t):
    """One without randomness, which vmap refuses."""
    return torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).reshape(t.shape).cos()


def loss(f):
    return lambda *a: sum(t.sin().sum() for t in tensors(f(*a)))


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [t for r in result for t in tensors(r)]


def moved(f, at):
    def call(*a):
        return jvp(lambda t: f(*a[:at], t, *a[at + 1 :]), (a[at],), (direction(a[at]),))[1]

    return call


def pulled(f, at):
    def call(*a):
        value, pull = vjp(lambda t: f(*a[:at], t, *a[at + 1 :]), a[at])
        return pull(direction(value))[0]

    return call


def mapped(f, at):
    def call(*a):
        stacked = torch.stack([a[at], 1.1 * a[at]])
        return vmap(lambda t: f(*a[:at], t, *a[at + 1 :]))(stacked)

    return call


TRANSFORMS = {
    "jvp": moved,
    "vjp": pulled,
    "grad": lambda f, at: grad(loss(f), at),
    "vmap": mapped,
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "hessian": lambda f, at: hessian(loss(f), at),
}
ORDER = {"vmap": 0, "hessian": 2}  # 1 of all others


def nest_of(choose, names):
    """Transforms, the innermost first, and by which operand each is."""
    nest, order = [], 0
    while order < 3 and len(nest) < 4:
        transform = choose.choice([t for t in TRANSFORMS if order + ORDER.get(t, 1) <= 3])
        nest.append((transform, choose.randrange(len(names))))
        order += ORDER.get(transform, 1)
        if order and choose.random() < 0.4:
            break
    return nest


def operands(choose, f, verb, device):
    """Tensors by name; some points of z are points of x."""
    shapes = {"x": (M, K), "z": (N, K), "w": (K,), "row": (M,), "col": (N,), "h": ()}
    shapes = {name: shape for name, shape in shapes.items() if name in f.reads}
    generator = torch.Generator().manual_seed(choose.randrange(1 << 30))
    given = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator)
        for name, shape in (shapes | verb.others).items()
    }
    for name in {"w", "h"} & given.keys():
        given[name] = given[name].abs() + 0.5
    if choose.random() < 0.5:
        given["z"][0] = given["x"][0]
    return {name: t.to(device) for name, t in given.items()}


@every_device
@pytest.mark.parametrize("seed", range(SEED, SEED + CASES))
def test_transforms_of_random_formulas(seed, device):
    choose = random.Random(seed)
    f = Formulas(choose)()
    verb_name = choose.choice(list(VERBS))
    verb = VERBS[verb_name]
    given = operands(choose, f, verb, device)
    names = list(given)

    def of_mercer(*a):
        named = dict(zip(names, a, strict=True))
        return verb.call(f.text, named.pop("x"), named.pop("z"), named)

    def of_torch(*a):
        return verb.plain(f, dict(zip(names, a, strict=True)))

    nest = nest_of(choose, names)
    said = f"{verb_name} of {f.text}, " + ", ".join(f"{t} by {names[at]}" for t, at in nest)
    for transform, at in nest:
        of_mercer, of_torch = (
            TRANSFORMS[transform](of_mercer, at),
            TRANSFORMS[transform](of_torch, at),
        )
    expected = tensors(of_torch(*given.values()))
    results = tensors(of_mercer(*given.values()))
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert other.isfinite().all(), said
        size = other.abs().max().item()
        torch.testing.assert_close(
            one, other, rtol=1e-8, atol=1e-8 * (1 + size), msg=lambda m: f"{said}\n{m}"
        )
