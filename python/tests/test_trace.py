"""Operators, functions, text and the zoo say the same thing in different ways."""

from __future__ import annotations

import copy
import functools
import math
import operator
import pickle

import mercer as mc
import numpy as np
import pytest

pytestmark = pytest.mark.quick

LAPLACE = "exp(-sum(abs(x-z)^p)/bandwidth)"

SAME = [
    (LAPLACE, mc.exp(-mc.sum(abs(mc.x - mc.z) ** mc.param("p")) / mc.param("bandwidth"))),
    (LAPLACE, mc.kernel(lambda x, z, p, bandwidth: mc.exp(-mc.sum(abs(x - z) ** p) / bandwidth))),
    ("sum(x*z)", mc.kernel(lambda x, z: mc.sum(x * z))),
    ("sqrt(sum(square(x-z)))", np.sqrt(np.sum(np.square(mc.x - mc.z)))),
    ("max(abs(x-z))", mc.max(abs(mc.x - mc.z))),
    ("sum(min(x, z))", mc.sum(mc.minimum(mc.x, mc.z))),
    ("sum(min(x, z))", mc.sum(mc.min(mc.x, mc.z))),
    ("where(i == j, 1, sum(x*z))", mc.where(mc.i == mc.j, 1, mc.sum(mc.x * mc.z))),
    ("sum(w*abs(x-z))/K", mc.sum(mc.w * abs(mc.x - mc.z)) / mc.K),
    ("row + col - 2*sum(x*z)", mc.row + mc.col - 2 * mc.sum(mc.x * mc.z)),
    ("!(x < z) || x >= 1 && z != 2", ~(mc.x < mc.z) | ((mc.x >= 1) & (mc.z != 2))),
    ("2^x - x/3", 2**mc.x - mc.x / 3),
    ("-x + floor(z)", -mc.x + math.floor(mc.z)),
    ("logsumexp(x + z)", mc.logsumexp(mc.x + mc.z)),
    ("atan2(x, z) + copysign(x, z)", np.arctan2(mc.x, mc.z) + np.copysign(mc.x, mc.z)),
]


@pytest.mark.parametrize(("text", "expression"), SAME, ids=[text for text, _ in SAME])
def test_front_ends_agree(text, expression):
    assert mc.parse(text).same(expression)
    assert mc.parse(text) == mc.kernel(expression)
    assert hash(mc.parse(text)) == hash(mc.kernel(expression))
    assert mc.parse(str(expression)).same(expression)


def test_defaults_of_a_function_become_defaults_of_parameters():
    f = mc.kernel(lambda x, z, p, bandwidth=2.0: mc.exp(-mc.sum(abs(x - z) ** p) / bandwidth))
    assert f.parameters == {"p": None, "bandwidth": 2.0}


def test_arguments_named_as_symbols_are_the_symbols():
    f = mc.kernel(lambda x, z, w, K, i, j, row, col: mc.sum(w * x * z) / K + i - j + row - col)
    assert f.same(mc.parse("sum(w*x*z)/K + i - j + row - col"))
    assert f.parameters == {}


def test_keyword_only_arguments():
    def f(x, z, *, scale=3.0):
        return mc.sum(x * z) * scale

    assert mc.kernel(f).same(mc.sum(mc.x * mc.z) * mc.param("scale", 3.0))


def test_a_function_may_return_a_number():
    assert str(mc.kernel(lambda x, z: 1)) == "1"


@pytest.mark.parametrize(
    "function", [lambda: 1, lambda x: x, lambda *points: 1, lambda x, z, **p: 1]
)
def test_a_function_needs_two_points(function):
    with pytest.raises(ValueError, match="must take the two points first"):
        mc.kernel(function)


def test_a_function_must_return_a_formula():
    with pytest.raises(TypeError, match=r"must return an expression or a number\. Received str"):
        mc.kernel(lambda x, z: "x")


def test_truth_values_are_refused():
    with pytest.raises(TypeError, match="no truth value; write where"):
        mc.kernel(lambda x, z: 1 if mc.i == mc.j else mc.sum(x * z))
    with pytest.raises(TypeError, match="no truth value"):
        mc.kernel(lambda x, z: x > 0 and z > 0)


def test_equality_builds_an_expression():
    assert isinstance(mc.x == mc.z, mc.Expr)
    assert isinstance(mc.x != 1, mc.Expr)
    assert not mc.x.same(mc.z)


def test_kernels_compare_as_wholes():
    f, g = mc.gauss(bandwidth=2.0), mc.kernel("exp(-sum(square(x-z))/(2*param(bandwidth, 2)^2))")
    assert [f == g, f != g, hash(f) == hash(g)] == [True, False, True]
    for other in (mc.gauss(bandwidth=3.0), mc.gauss(), mc.laplace(), "gauss", None):
        assert [f == other, other == f, f != other, other != f] == [False, False, True, True]
    assert f in [mc.laplace(), g]
    assert {f: 1}[g] == 1
    assert len({f, g, mc.gauss()}) == 2
    assert isinstance(f.bind(bandwidth=1.0), mc.Kernel)
    assert f.bind(bandwidth=1.0) == mc.gauss(bandwidth=5.0).bind(bandwidth=1.0)
    assert mc.differentiate(f, "x") == mc.differentiate(g, mc.x)
    assert type(f + g) is mc.Expr
    assert mc.kernel(f + g) == mc.kernel(f.bind() + g)
    for again in (copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))):
        assert again(f) == f
        assert hash(again(f)) == hash(f)


def test_kernels_are_keys():
    calls = []

    @functools.lru_cache
    def width(f):
        calls.append(f)
        return f.parameters

    for _ in range(2):
        width(mc.gauss(bandwidth=2.0))
        width(mc.kernel("sum(x*z)"))
    assert len(calls) == 2
    with pytest.raises(
        TypeError, match=r"no hash, since == builds another one; write mercer.kernel"
    ):
        width(mc.sum(mc.x * mc.z))


def test_kernels_are_static_arguments_of_jax():
    jax = pytest.importorskip("jax")
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def matrix(f, x):
        traced.append(f)
        return mc.pairwise(f, x)

    x = jax.numpy.ones((3, 2))
    for _ in range(2):
        matrix(mc.gauss(bandwidth=2.0), x)
        matrix(mc.laplace(), x)
    assert traced == [mc.gauss(bandwidth=2.0), mc.laplace()]


def test_kernels_that_carry_arrays_are_equal_by_the_arrays_themselves():
    torch = pytest.importorskip("torch")
    h = torch.ones(())
    f, g = mc.gauss(bandwidth=h), mc.gauss(bandwidth=h)
    assert [f == g, f.same(g), hash(f) == hash(g)] == [True] * 3
    assert mc.gauss() != f != mc.gauss(bandwidth=torch.ones(()))


def test_of_a_kernel_and_anything_else_equality_builds_an_expression():
    f = mc.kernel("sum(x*z)")
    for one in (f == mc.i, mc.i == f, f == 1, f != mc.sum(mc.x), np.float64(1) == f):
        assert type(one) is mc.Expr
    with pytest.raises(TypeError, match="no truth value"):
        mc.kernel(lambda x, z: 0 if f == 1 else f)


def test_truth_values_are_no_operands():
    """== of two kernels would otherwise become the number 0 or 1 without a word."""
    f, g = mc.gauss(), mc.laplace()
    for build in (lambda: mc.where(f == g, 1, f), lambda: (f == g) & (mc.i < 3),
                  lambda: (f == g) * f, lambda: mc.logical_not(f != g),
                  lambda: mc.x + True):  # fmt: skip
        with pytest.raises(TypeError, match=r"must be no truth value, since == of two kernels"):
            build()
    with pytest.raises(TypeError, match=r"must return an expression or a number\. Received bool"):
        mc.kernel(lambda x, z: f == g)


def test_unknown_operands_are_left_to_python():
    assert (mc.x == "x") is False
    with pytest.raises(TypeError):
        mc.x + "x"


@pytest.mark.parametrize(
    "operation", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow,
                  operator.lt, operator.ge, operator.eq]
)  # fmt: skip
@pytest.mark.parametrize("number", [3, 2.5, np.float64(2.5), np.float32(2.5), np.int64(3)])
def test_numbers_of_any_kind_stand_on_either_side(operation, number):
    value = float(number)
    assert operation(mc.x, number).same(operation(mc.x, value))
    if operation not in (operator.lt, operator.ge, operator.eq):  # these may be turned round
        assert operation(number, mc.x).same(operation(mc.kernel(lambda x, z: value), mc.x))


def test_arrays_are_not_expressions():
    with pytest.raises(TypeError):
        np.ones(3) * mc.x
    with pytest.raises(TypeError):
        mc.exp(np.ones(3))


def test_options_of_numpy_are_refused():
    with pytest.raises(TypeError, match="takes no options"):
        np.sum(mc.x, axis=0)


def test_names_of_the_zoo():
    assert mc.kernel("canberra").same(mc.canberra())
    assert mc.metric("minkowski", p=1.5).same(mc.minkowski(p=1.5))
    assert mc.gauss(bandwidth=3).parameters == {"bandwidth": 3.0}
    with pytest.raises(ValueError, match="no metric or kernel of this name"):
        mc.kernel("canbera")


def test_every_entry_is_a_function_under_each_of_its_names():
    for row in mc.zoo.table:
        for name in [row["name"], *row["aliases"]]:
            if name.isidentifier():
                assert getattr(mc, name)().same(mc.metric(row["name"])), name


def test_no_entry_hides_an_operation():
    names = {name for row in mc.zoo.table for name in [row["name"], *row["aliases"]]}
    assert not names & set(vars(mc._mercer))


def test_options_of_the_zoo():
    with pytest.raises(TypeError, match=r"the options are \['bandwidth', 'p'\]. Received \['q'\]"):
        mc.laplace(q=1)
    assert "w*" in str(mc.cityblock(weighted=True))


def test_bind_replaces_parameters():
    f = mc.kernel(LAPLACE).bind(p=1, bandwidth=mc.K)
    assert f.same(mc.parse("exp(-sum(abs(x-z)^1)/K)"))
    assert f.parameters == {}


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_copies(again):
    f = mc.kernel(LAPLACE)
    assert again(f).same(f)


def test_repr_can_be_read_back():
    f = mc.kernel(lambda x, z, h=2.0: mc.sum(x * z) / h)
    assert eval(repr(f), {"kernel": mc.kernel}).same(f)


def test_reduce_with_one_slot():
    f = mc.reduce(abs(mc.x - mc.z), lambda s, t: mc.maximum(s, t), 0.0)
    assert mc.parse(str(f)).same(f)


def test_reduce_with_a_tuple():
    gap = mc.x - mc.z
    f = mc.reduce(
        (gap, gap),
        lambda s, t: (mc.maximum(s[0], t[0]), mc.minimum(s[1], t[1])),
        (-math.inf, math.inf),
        finish=lambda s: s[0] - s[1],
    )
    assert mc.parse(str(f)).same(f)
    with pytest.raises(ValueError, match="needs finish"):
        mc.reduce((gap, gap), lambda s, t: (s[0] + t[0], s[1]), (0, 0))
    with pytest.raises(ValueError, match="one entry per slot"):
        mc.reduce((gap, gap), lambda s, t: s, (0,), finish=lambda s: s[0])


def test_differentiate_takes_symbols_and_names():
    f = mc.exp(-mc.sum(mc.square(mc.x - mc.z)) / mc.param("h", 2.0))
    assert mc.differentiate(f, "x").same(mc.differentiate(f, mc.x))
    assert mc.differentiate(f, "h").same(mc.differentiate(f, mc.param("h", 2.0)))
    assert mc.differentiate("sum(x*z)", "z").same(mc.differentiate("sum(x*z)", mc.z))
    with pytest.raises(ValueError, match=r'variable must be x, z, w or a parameter.*Received "q"'):
        mc.differentiate(f, "q")


def test_symmetric():
    assert mc.kernel("sum(abs(x-z))").symmetric
    assert not mc.kernel("sum(x*log(z))").symmetric


def test_a_star_import_leaves_the_builtins_alone():
    import builtins

    names = {}
    exec("from mercer import *", names)
    assert names["cdist"] is mc.cdist
    assert names["gauss"] is mc.gauss
    assert names["knn"] is mc.knn
    for name in mc.__all__:
        assert not hasattr(builtins, name), name
    assert not {"sum", "max", "abs", "annotations", "builtins"} & set(mc.__all__)
