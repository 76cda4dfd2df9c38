"""mercer.compat.mm_kermac: token programs as formulas, against a machine that runs the tokens."""

from __future__ import annotations

import random

import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import compat_stack  # noqa: E402
from compat_oracles import assert_close, differences, field, products, wide  # noqa: E402
from mercer.compat.mm_kermac import (  # noqa: E402
    CudaTimer,
    PtxInstruction,
    SpecialRegister,
    Stack,
    helpers,
    hyper_semiring,
    hyper_semiring_gradient,
    stack_ptx_types,
)
from mercer.compat.mm_kermac.hyper_semiring import HyperSemiringKernel  # noqa: E402
from mercer.compat.mm_kermac.hyper_semiring_gradient import HyperSemiringGradientKernel  # noqa: E402
from mercer.compat.mm_ptx.stack_ptx import StackPtxError  # noqa: E402

P = PtxInstruction
M, N, K, L, OUTPUTS = 6, 5, 7, 3, 4


def as_it_is(e, _):
    return [e]


def check(kernel, x, z, hypers=None, tolerance=1e-4, by_columns=False):
    """The kernel's matrix and that of its tokens on numbers; rows swap a and b."""
    numbers = {name: float(value) for name, value in (hypers or {}).items()}
    a, b = wide(x).numpy(), wide(z).numpy()
    if by_columns:
        out = torch.empty(N, M, device=x.device).mT
        expected = compat_stack.matrix(kernel.mma_lambda, kernel.epilogue_lambda, a, b, numbers)
    else:
        out = torch.empty(M, N, device=x.device)
        expected = compat_stack.matrix(kernel.mma_lambda, kernel.epilogue_lambda, b, a, numbers).T
    assert kernel(x, z, hypers, out) is out
    assert_close(out, torch.from_numpy(np.ascontiguousarray(expected)), tolerance)


# The zoo


def norm(x, z, p):
    return (differences(x, z).abs() ** p).sum(-1) ** (1 / p)


def test_zoo(draw, device):
    x, z = draw(M, K), draw(N, K)
    assert_close(hyper_semiring.Gemm()(x, z), products(x, z).sum(-1)[None])
    assert_close(hyper_semiring.NormL1()(x, z), norm(x, z, 1)[None])
    assert_close(hyper_semiring.NormL2()(x, z), norm(x, z, 2)[None])
    p = torch.tensor([1.3, 1.5], device=device)
    expected = torch.stack([norm(x, z, 1.3), norm(x, z, 1.5)])
    cut = float(expected.median())
    for epsilon in (1e-3, cut):
        result = hyper_semiring.NormLp(epsilon)(x, z, p, 1 / p)
        assert_close(result, torch.where(epsilon > expected, 0, expected))


def test_zoo_has_the_fast_formulas():
    formulas = [
        hyper_semiring.Gemm().hyper_semiring.formula(),
        hyper_semiring.NormL1().hyper_semiring.formula(),
        hyper_semiring.NormL2().hyper_semiring.formula(),
        hyper_semiring.NormLp(0.5).hyper_semiring.formula(("p_inner", "p_outer")),
    ]
    power = "sum(abs(x - z)^hyper0)^hyper1"
    assert [*map(str, formulas)] == [
        "sum(x*z)", "sum(abs(x - z))", "sqrt(sum(square(x - z)))",
        f"where(0.5 > {power}, 0, {power})",
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(M, N), (1, M, N), (L, M, N)])
def test_out_is_returned_as_given(draw, shape):
    x, z, out = draw(M, K), draw(N, K), draw(*shape)
    assert hyper_semiring.Gemm()(x, z, out=out, try_to_align=True) is out
    assert_close(out, products(x, z).sum(-1).expand(shape))


# Instructions


@pytest.mark.parametrize("instruction", P)
def test_every_instruction(draw, instruction):
    x, z = draw(M, K).abs() + 0.5, -draw(N, K).abs() - 0.5  # apart from kinks and poles
    count = sum(kind.stack_type == Stack.f32 for kind in instruction.args)
    selects = len(instruction.args) != count
    turn = instruction.name.split("_")[0] in ("rsqrt", "sqrt", "lg2")

    def mma(a, b, c, _):
        f = [c, P.neg_ftz_f32, a, P.sub_ftz_f32] if count == 3 else []  # reads c too
        f += [a, P.abs_ftz_f32] if turn else [b, a][-count:]
        if selects:
            f = [a, b, P.setp_lt_ftz_f32, *f]
        f += [instruction]
        if instruction.rets[0].stack_type == Stack.pred:
            f += [a, b, P.selp_f32]
        return f if count == 3 else [*f, c, P.add_ftz_f32]

    check(HyperSemiringKernel(mma, as_it_is), x, z)
    check(HyperSemiringKernel(mma, as_it_is), x, z, by_columns=True)


def test_operands_in_the_order_of_the_stack(draw):
    x, z = draw(M, K), draw(N, K)
    kernel = HyperSemiringKernel(
        lambda a, b, c, _: [a, b, P.sub_ftz_f32, c, P.add_ftz_f32], as_it_is
    )
    by_rows, by_columns = torch.empty(M, N).to(x), torch.empty(N, M).to(x).mT
    assert_close(kernel(x, z, out=by_rows), differences(x, z).sum(-1))  # top minus second
    assert_close(kernel(x, z, out=by_columns), -differences(x, z).sum(-1))


PLAIN = [
    P.add_ftz_f32, P.sub_ftz_f32, P.abs_ftz_f32, P.neg_ftz_f32, P.min_ftz_f32, P.max_ftz_f32,
    P.setp_lt_ftz_f32, P.setp_gt_ftz_f32, P.selp_f32, P.mul_ftz_f32, P.fma_rn_ftz_f32,
]  # fmt: skip


def program(choose, registers):
    """Instructions at random; of whole numbers their values are exact in float32."""
    moves = [Stack.f32.dup, Stack.f32.swap, Stack.f32.rotate, Stack.f32.reverse, Stack.pred.dup]
    tokens = []
    for _ in range(choose.randint(1, 18)):
        kind = choose.random()
        if kind < 0.35:
            tokens.append(choose.choice(registers))
        elif kind < 0.7:
            tokens.append(choose.choice(PLAIN))
        elif kind < 0.8:
            tokens.append(choose.choice(moves))
        elif kind < 0.86:
            tokens.append(Stack.f32.constant(choose.randint(-2, 3)))
        elif kind < 0.94:
            stack = choose.choice([Stack.f32, Stack.pred])
            tokens += [Stack.meta_constant(choose.randint(0, 3)), choose.choice(
                [stack.yank_dup, stack.swap_with, stack.replace, stack.drop])]  # fmt: skip
        else:
            tokens += [choose.choice([Stack.f32.store(1), Stack.load(1), Stack.pred.store(2)])]
    return tokens


def renamed(tokens, **known):
    """Tokens with the registers of a kernel in the place of those that stand for them."""
    return [known[t.name] if isinstance(t, compat_stack.Register) else t for t in tokens]


@pytest.mark.parametrize("seed", range(40))
def test_programs_at_random(draw, seed):
    choose = random.Random(seed)
    chosen = np.random.default_rng(seed)
    x, z = (torch.from_numpy(chosen.integers(-3, 4, (n, 3)).astype("f")) for n in (M, N))
    device = draw(1).device
    registers = [compat_stack.Register(name) for name in "abce"]
    steps, end = program(choose, registers[:3]), program(choose, registers[3:])

    kernel = HyperSemiringKernel(
        lambda a, b, c, _: renamed(steps, a=a, b=b, c=c), lambda e, _: renamed(end, e=e)
    )
    with np.errstate(over="ignore"):
        expected = compat_stack.matrix(
            kernel.mma_lambda, kernel.epilogue_lambda, z.double().numpy(), x.double().numpy()
        )
        expected = np.broadcast_to(expected, (N, M)).T
    exact = np.abs(expected) < 2**20
    result = wide(kernel(x.to(device), z.to(device)))[0].numpy()
    np.testing.assert_array_equal(result[exact], expected[exact])


# Accumulations


def test_sums_of_several_terms_stay_sums(draw):
    def mma(a, b, c, hypers):
        return [
            a, b, P.mul_ftz_f32, c, P.add_ftz_f32, hypers["w"], P.add_ftz_f32,
            a, b, P.sub_ftz_f32, Stack.f32.dup, P.fma_rn_ftz_f32,
        ]  # fmt: skip

    kernel = HyperSemiringKernel(mma, as_it_is)
    assert str(kernel.formula(("w",))).startswith("sum(")
    x, z = draw(M, K), draw(N, K)
    check(kernel, x, z, {"w": torch.tensor(0.5, device=x.device)})


@pytest.mark.parametrize(
    "mma",
    [
        lambda a, b, c, _: [a, b, P.add_ftz_f32, c, P.max_ftz_f32],
        lambda a, b, c, h: [c, h["w"], P.mul_ftz_f32, a, b, P.mul_ftz_f32, P.add_ftz_f32],
        lambda a, b, c, h: [
            c, a, P.sub_ftz_f32, P.abs_ftz_f32, b, P.max_ftz_f32, h["w"], P.add_ftz_f32,
        ],
        lambda a, b, c, _: [c, a, b, P.mul_ftz_f32],  # the last feature alone
        lambda a, b, c, _: [],  # the state is never written
        lambda a, b, c, h: [c, h["w"], P.add_ftz_f32],  # no feature is read
        lambda a, b, c, h: [c, P.neg_ftz_f32, h["w"], P.sub_ftz_f32],
    ],
)  # fmt: skip
def test_accumulations_in_order(draw, mma):
    x, z = draw(M, K), draw(N, K)
    w = torch.tensor(0.75, device=x.device)
    check(HyperSemiringKernel(mma, lambda e, h: [e, h["w"], P.sub_ftz_f32]), x, z, {"w": w})


def test_features_are_not_padded(draw):
    """exp2(a b) of a padded feature would add 1."""
    x, z = draw(M, 5), draw(N, 5)
    kernel = HyperSemiringKernel(
        lambda a, b, c, _: [a, b, P.mul_ftz_f32, P.ex2_approx_ftz_f32, c, P.add_ftz_f32], as_it_is
    )
    assert_close(kernel(x, z), torch.exp2(products(x, z)).sum(-1)[None])
    assert_close(kernel(x[:, :0], z[:, :0]), torch.zeros(1, M, N, dtype=torch.float64))


# Hyper-parameters


def test_hypers_bind_by_name(draw, device):
    x, z = draw(M, K), draw(N, K)
    kernel = HyperSemiringKernel(
        lambda a, b, c, h: [
            a, b, P.sub_ftz_f32, P.abs_ftz_f32, h["scale by"], P.mul_ftz_f32, c, P.add_ftz_f32,
        ],
        lambda e, h: [e, h["out"], P.sub_ftz_f32],
    )  # fmt: skip
    scale, shift = torch.tensor(2.0, device=device), torch.tensor([5.0, 7.0], device=device)
    s = differences(x, z).abs().sum(-1)
    expected = torch.stack([5 - 2 * s, 7 - 2 * s])
    assert_close(kernel(x, z, {"scale by": scale, "out": shift}), expected)
    assert_close(kernel(x, z, {"out": shift, "scale by": scale}), expected)
    unread = {"scale by": scale, "out": scale, "unread": shift}
    assert_close(kernel(x, z, unread), (2 - 2 * s).expand(2, M, N))
    with pytest.raises(KeyError, match="out"):
        kernel(x, z, {"scale by": scale})


@pytest.mark.parametrize(
    ("hypers", "kind"),
    [
        ([1.0], TypeError), ({"w": 1.0}, TypeError), ({"w": torch.tensor(1)}, TypeError),
        ({"w": torch.ones(2, 2)}, ValueError), ({"w": torch.ones(L + 1)}, ValueError),
        ({"w": torch.ones((), device="meta")}, ValueError),
    ],
)  # fmt: skip
def test_hypers_that_are_refused(draw, hypers, kind):
    kernel = HyperSemiringKernel(
        lambda a, b, c, h: [a, b, P.mul_ftz_f32, c, P.add_ftz_f32],
        lambda e, h: [e, h["w"], P.mul_ftz_f32],
    )
    with pytest.raises(kind):
        kernel(draw(L, M, K), draw(N, K), hypers)


def test_points_that_are_refused(draw):
    gemm, x, z = hyper_semiring.Gemm(), draw(M, K), draw(N, K)
    for arguments, kind in (
        ((x.double(), z), TypeError), ((x, None), TypeError), ((x, z[:, 1:]), ValueError),
        ((x[:, ::2], z[:, ::2]), ValueError), ((x, z, draw(N, M)), ValueError),
    ):  # fmt: skip
        with pytest.raises(kind):
            gemm(*arguments)


# Limits


def test_limits_of_stack_ptx(draw):
    x, z = draw(M, K), draw(N, K)

    def long(a, b, c, _):
        return [a, b, P.mul_ftz_f32, *[a, P.add_ftz_f32] * 6, c, P.add_ftz_f32]

    check(HyperSemiringKernel(long, as_it_is), x, z)
    with pytest.raises(StackPtxError, match="INSUFFICIENT_AST_SIZE"):
        HyperSemiringKernel(long, as_it_is, max_ast_size=20)(x, z)
    with pytest.raises(StackPtxError, match="INSUFFICIENT_AST_VISIT_SIZE"):
        HyperSemiringKernel(long, as_it_is, max_ast_to_visit_stack_depth=3)(x, z)
    for token, text in ((Stack.f32.store(16), "STORE_IDX"), (Stack.load(-1), "LOAD_IDX")):
        with pytest.raises(StackPtxError, match=text):
            HyperSemiringKernel(lambda a, b, c, _, token=token: [a, token], as_it_is)(x, z)
    with pytest.raises(ValueError, match="Invalid instruction"):
        HyperSemiringKernel(lambda a, b, c, _: [a, "mul"], as_it_is)(x, z)
    # What the execution limit and a full stack cut off is not run.
    few = HyperSemiringKernel(
        lambda a, b, c, _: [a, b, P.mul_ftz_f32, P.neg_ftz_f32], as_it_is, execution_limit=3
    )
    assert_close(few(x, z), (x[:, -1:].double() @ z[:, -1:].mT.double()).cpu()[None])
    full = HyperSemiringKernel(lambda a, b, c, _: [b, a, a], as_it_is, stack_size=1)
    assert_close(full(x, z), wide(x)[None, :, -1:].expand(1, M, N))


def test_special_registers_reach_no_value(draw):
    x, z = draw(M, K), draw(N, K)
    kernel = HyperSemiringKernel(
        lambda a, b, c, _: [
            SpecialRegister.clock, a, SpecialRegister.tid_x, Stack.u32.constant(3), b,
            P.mul_ftz_f32, Stack.u32.dup, c, P.add_ftz_f32,
        ],
        as_it_is,
    )  # fmt: skip
    assert_close(kernel(x, z), products(x, z).sum(-1)[None])


# Gradients


def arrays(draw, *lead):
    a, b, c, d = draw(*lead, K, M), draw(*lead, N, K), draw(*lead, OUTPUTS, K), draw(*lead, N, M)
    d[..., 0] = b[..., 0]
    return a, b, c, d


def clamped(p, epsilon=0.1):
    return lambda t: torch.copysign(t.abs().clamp_min(epsilon) ** (p - 1), t)


def test_zoo_of_gradients(draw, device):
    a, b, c, d = arrays(draw)
    one = hyper_semiring_gradient.NormL1()(b, d, c, a)
    assert_close(one, field(a, b, c, d, lambda t: torch.copysign(torch.ones_like(t), t))[None])
    assert_close(hyper_semiring_gradient.NormL2()(b, d, c, a), field(a, b, c, d, lambda t: t)[None])
    powers, out = torch.tensor([0.3, 0.5], device=device), draw(2, OUTPUTS, N, M)
    lp = hyper_semiring_gradient.NormLp(0.1)
    assert lp(b, d, c, a, powers, out=out) is out
    expected = [field(a, b, c, d, clamped(p)) for p in (1.3, 1.5)]
    assert_close(out, torch.stack(expected))


def gradient(multiply, accumulate, epilogue, a, b, c, d):
    """The gradient from functions of numbers, feature by feature."""
    a, b, c, d = map(wide, (a, b, c, d))
    state = torch.zeros(OUTPUTS, N, M, dtype=torch.float64)
    for k in range(K):
        factor = multiply(d[None], b[None, :, k, None], a[None, None, k])
        state = accumulate(c[:, k, None, None], factor, state)
    return epilogue(state)


F = P.fma_rn_ftz_f32
GRADIENTS = {
    # multiply, accumulate and epilogue as tokens, as functions, and whether that is a field
    "epilogue": (
        lambda d, b, a, _: [b, d, P.sub_ftz_f32, a, P.mul_ftz_f32],
        lambda c, f, e, _: [e, c, f, F],
        lambda e, h: [e, P.abs_ftz_f32, h["w"], P.add_ftz_f32],
        lambda d, b, a: (d - b) * a, lambda c, f, e: e + c * f, lambda e: e.abs() + 0.5, True,
    ),
    "without a and c": (
        lambda d, b, a, h: [
            b, d, P.sub_ftz_f32, Stack.f32.dup, P.mul_ftz_f32, h["w"], P.mul_ftz_f32,
        ],
        lambda c, f, e, _: [f, e, P.sub_ftz_f32], as_it_is,
        lambda d, b, a: 0.5 * (d - b) ** 2, lambda c, f, e: e - f, lambda e: e, True,
    ),
    "a and c alone": (
        lambda d, b, a, _: [a], lambda c, f, e, _: [c, f, P.mul_ftz_f32, e, P.add_ftz_f32],
        as_it_is, lambda d, b, a: a + 0 * d, lambda c, f, e: e + c * f, lambda e: e, True,
    ),
    "a function of a": (
        lambda d, b, a, _: [b, d, P.sub_ftz_f32, a, P.ex2_approx_ftz_f32, P.mul_ftz_f32],
        lambda c, f, e, _: [e, c, f, F], as_it_is,
        lambda d, b, a: (d - b) * torch.exp2(a), lambda c, f, e: e + c * f, lambda e: e, False,
    ),
    "c twice": (
        lambda d, b, a, _: [b, d, P.sub_ftz_f32, a, P.mul_ftz_f32],
        lambda c, f, e, _: [e, c, c, P.mul_ftz_f32, f, F], as_it_is,
        lambda d, b, a: (d - b) * a, lambda c, f, e: e + c * c * f, lambda e: e, False,
    ),
    "two products": (
        lambda d, b, a, _: [b, d, P.sub_ftz_f32, a, P.mul_ftz_f32],
        lambda c, f, e, _: [e, c, f, F, c, P.add_ftz_f32], as_it_is,
        lambda d, b, a: (d - b) * a, lambda c, f, e: e + c * f + c, lambda e: e, False,
    ),
    "nothing of b and d": (
        lambda d, b, a, _: [d, d, d, P.setp_gt_ftz_f32, d, b, P.selp_f32, P.abs_ftz_f32, a],
        lambda c, f, e, _: [e, f, P.min_ftz_f32],
        lambda e, h: [e, e, e, P.setp_gt_ftz_f32, h["w"], h["w"], P.selp_f32],
        lambda d, b, a: a + 0 * d, lambda c, f, e: torch.minimum(e, f + 0 * e),
        lambda e: 0 * e + 0.5, False,
    ),
    "an epilogue without e": (
        lambda d, b, a, _: [a], lambda c, f, e, _: [e, c, f, F],
        lambda e, h: [e, e, P.setp_gt_ftz_f32, h["w"], h["w"], P.selp_f32],
        lambda d, b, a: a + 0 * d, lambda c, f, e: e + c * f, lambda e: 0 * e + 0.5, True,
    ),
    "maximum": (
        lambda d, b, a, _: [b, d, P.sub_ftz_f32, a, P.mul_ftz_f32],
        lambda c, f, e, _: [c, f, P.mul_ftz_f32, e, P.max_ftz_f32],
        lambda e, h: [e, h["w"], P.mul_ftz_f32],
        lambda d, b, a: (d - b) * a, lambda c, f, e: torch.maximum(e, c * f), lambda e: e / 2,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(draw, device, name):
    *tokens, multiply, accumulate, epilogue, is_field = GRADIENTS[name]
    kernel = HyperSemiringGradientKernel(*tokens)
    a, b, c, d = arrays(draw)
    hypers = {"w": torch.tensor(0.5, device=device)}
    expected = gradient(multiply, accumulate, epilogue, a, b, c, d)
    assert_close(kernel(a, b, c, d, hypers)[0], expected, 1e-4)
    (plan,) = kernel._plans.values()
    assert (plan.field is not None) == is_field
    out = draw(OUTPUTS, N, M)
    assert kernel(a, b, c, d, hypers, out) is out
    assert_close(out, expected, 1e-4)
    batched = arrays(draw, L)
    hypers["w"] = hypers["w"].expand(L).contiguous()
    expected = [
        gradient(multiply, accumulate, epilogue, *(t[i] for t in batched)) for i in range(L)
    ]
    assert_close(kernel(*batched, hypers), torch.stack(expected), 1e-4)


def test_any_accumulation_is_one_call(draw, device, monkeypatch):
    calls = []

    def counted(name):
        verb = getattr(mc, name)
        monkeypatch.setattr(mc, name, lambda *a, **o: (calls.append(name), verb(*a, **o))[1])

    kernel = HyperSemiringGradientKernel(*GRADIENTS["maximum"][:3])
    batched, hypers = arrays(draw, L), {"w": torch.tensor(0.5, device=device)}
    for name in mc._verbs.NAMES:
        counted(name)
    kernel(*batched, hypers)
    assert calls == ["gradient_field"]


@pytest.mark.parametrize("seed", range(30))
def test_gradients_at_random(device, seed):
    choose, chosen = random.Random(seed), np.random.default_rng(seed)
    shapes = (3, M), (N, 3), (OUTPUTS, 3), (N, M)
    numbers = [chosen.integers(-2, 3, shape).astype("f") for shape in shapes]
    a, b, c, d, diff, e = map(compat_stack.Register, ("a", "b", "c", "d", "diff", "e"))
    steps = [program(choose, r) for r in ([d, b, a], [c, diff, e], [e])]
    if choose.random() < 0.5:  # a field
        steps[0:2] = [*steps[0], a, P.mul_ftz_f32], [e, c, diff, F]
    kernel = HyperSemiringGradientKernel(
        lambda d, b, a, _: renamed(steps[0], d=d, b=b, a=a),
        lambda c, f, e, _: renamed(steps[1], c=c, diff=f, e=e),
        lambda e, _: renamed(steps[2], e=e),
    )
    tensors = [torch.from_numpy(array).to(device) for array in numbers]
    expected = compat_stack.gradient(
        kernel.multiply_lambda, kernel.accumulate_lambda, kernel.epilogue_lambda, *numbers
    )
    if expected is None:
        with pytest.raises(ValueError, match="leave no value"):
            kernel(*tensors)
        return
    exact = np.abs(expected) < 2**20
    result = wide(kernel(*tensors)[0]).numpy()
    np.testing.assert_array_equal(result[exact], expected[exact])


def test_results_are_float32_whatever_the_default(draw):
    a, b, c, d = arrays(draw)
    kernel = HyperSemiringGradientKernel(*GRADIENTS["without a and c"][:3])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = kernel(a, b, c, d, {"w": torch.tensor(0.5).to(a)})
    finally:
        torch.set_default_dtype(before)
    assert result.dtype is torch.float32


def test_gradients_that_are_refused(draw):
    kernel = HyperSemiringGradientKernel(*GRADIENTS["maximum"][:3])
    a, b, c, d = arrays(draw)
    hypers = {"w": torch.tensor(0.5, device=a.device)}
    for arguments, kind in (
        ((a.double(), b, c, d, hypers), TypeError), ((a, b, c, d, {"w": 0.5}), TypeError),
        ((a, b[:, 1:].contiguous(), c, d, hypers), ValueError),
        ((a, b, c, d.mT.contiguous().mT, hypers), ValueError),
        ((a, b, c, d, hypers, draw(OUTPUTS, N, M + 1)), ValueError),
    ):  # fmt: skip
        with pytest.raises(kind):
            kernel(*arguments)
    nothing = HyperSemiringGradientKernel(lambda d, b, a, _: [], *GRADIENTS["maximum"][1:3])
    with pytest.raises(ValueError, match="leave no value on the f32 stack"):
        nothing(a, b, c, d, hypers)


# Helpers


def test_helpers(draw, capsys):
    a, b, c, d = arrays(draw, L)
    assert_close(helpers.torch_einsum_L2_norm(b, d, c, a), field(a, b, c, d, lambda t: t))
    result = helpers.torch_inefficient_p_norm(b, d, c, a, 1.3, eps=0.1)
    expected = field(a, b, c, d, lambda t: t.sign() * t.abs().clamp_min(0.1) ** 0.3)
    assert_close(result, expected)
    helpers.compare_tensors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    lines = capsys.readouterr().out.splitlines()
    assert [float(line.split()[-1]) for line in lines] == pytest.approx([2**0.5, 2, 1], rel=1e-6)


def test_the_types_are_those_of_the_module():
    assert stack_ptx_types.Stack is Stack
    assert stack_ptx_types.PtxInstruction is PtxInstruction


def test_timer():
    timer = CudaTimer()
    timer.start()
    assert timer.stop() >= 0
