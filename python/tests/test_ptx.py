"""PTX of a user: its meaning on CPUs, its text in the kernels of GPUs, its mistakes."""

from __future__ import annotations

import pickle

import mercer as mc
import numpy as np
import pytest

GAP = "sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};"
MIN_MAX = "min.f32 {out0}, {0}, {1}; max.f32 {out1}, {0}, {1};"


def gap():
    return mc.ptx(GAP, (mc.x, mc.z), meaning=lambda a, b: abs(a - b))


def test_the_meaning_may_be_a_function_or_an_expression():
    text = f'ptx("{GAP}", x, z; abs(x - z))'
    assert str(gap()) == text
    assert gap().same(mc.ptx(GAP, (mc.x, mc.z), meaning=abs(mc.x - mc.z)))
    assert gap().same(mc.parse(text))
    assert gap().same(pickle.loads(pickle.dumps(gap())))
    assert mc.ptx("abs.f32 {out}, {0};", mc.x, meaning=abs).same(
        mc.parse('ptx("abs.f32 {out}, {0};", x; abs(x))')
    )


def test_several_outputs_are_a_tuple():
    low, high = mc.ptx(
        MIN_MAX, (mc.x, mc.z), 2, meaning=lambda a, b: (mc.minimum(a, b), mc.maximum(a, b))
    )
    assert str(low) == f'ptx("{MIN_MAX}", x, z; out0=min(x, z))'
    assert str(high) == f'ptx("{MIN_MAX}", x, z; out1=max(x, z))'


TYPED = {
    "bits": ("{ .reg .u32 t; and.b32 t, {0:u32}, 0x7fffffff; mov.u32 {out:u32}, t; }",
             (mc.x - mc.z,), abs, "abs(x-z)"),
    "a predicate is read": ("selp.f32 {out}, {1}, {2}, {0:pred};", (mc.x < mc.z, mc.x, mc.z),
                            mc.where, "where(x < z, x, z)"),
    "a predicate is written": ("setp.lt.f32 {out:pred}, {0}, {1};", (mc.x, mc.z),
                               lambda a, b: a < b, "where(x < z, 1, 0)"),
    "a predicate guards": ("{ .reg .f32 t; mov.f32 t, {0}; @!{1:pred} neg.f32 t, t;"
                           " mov.f32 {out}, t; }", (mc.x, mc.x > mc.z),
                           lambda a, c: mc.where(c, a, -a), "where(x > z, x, -x)"),
    "eight inputs": ("{ .reg .f32 t; add.f32 t, {0}, {1}; add.f32 t, t, {2}; add.f32 t, t, {3};"
                     " add.f32 t, t, {4}; add.f32 t, t, {5}; add.f32 t, t, {6};"
                     " add.f32 {out}, t, {7}; }", (mc.x, mc.z) * 4,
                     lambda *v: sum(v[1:], v[0]), "x + z + x + z + x + z + x + z"),
    "no input": ("mov.f32 {out}, 0f40000000;", (), lambda: 2.0, "2 + 0*x*z"),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPED)
def test_values_have_types(rng, case):
    text, inputs, meaning, plain = TYPED[case]
    value = mc.ptx(text, inputs, meaning=meaning)
    assert value.same(mc.parse(str(value)))
    assert value.same(pickle.loads(pickle.dumps(value)))
    x, z = rng.standard_normal((7, 5), "f"), rng.standard_normal((9, 5), "f")
    f = mc.sum(value * mc.x * mc.z)
    np.testing.assert_array_equal(mc.pairwise(f, x, z), mc.pairwise(f"sum(({plain})*x*z)", x, z))
    explained = str(mc.explain(f, shape=(4096, 4096, 50), target="sm_90"))
    assert text in explained


@pytest.mark.skipif("NVRTC: none" in mc.info(), reason="needs NVRTC")
def test_the_assembler_takes_values_of_all_types():
    values = [mc.ptx(text, read, meaning=meaning) for text, read, meaning, _ in TYPED.values()]
    total = sum(values[1:], values[0]) * mc.x * mc.z
    mc.compile(mc.sum(total), shapes=[(4096, 4096, 32)], devices=["sm_90a"])


def test_bits_and_predicates_on_a_gpu(rng):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x, z = (torch.from_numpy(rng.standard_normal((n, 37), "f")).cuda() for n in (70, 90))
    for text, inputs, meaning, plain in TYPED.values():
        value = mc.ptx(text, inputs, meaning=meaning)
        np.testing.assert_allclose(
            mc.pairwise(mc.sum(value * mc.x * mc.z), x, z).cpu(),
            mc.pairwise(f"sum(({plain})*x*z)", x, z).cpu(),
            rtol=1e-5, atol=1e-4,
        )  # fmt: skip


def field_calls(xp, rng):
    x, z, amplitude, coef = (
        xp(rng.standard_normal(shape, "f")) for shape in ((30, 20), (40, 20), (30, 40), (40,))
    )
    return lambda phi: mc.gradient_field(phi, x, z, amplitude, coef)


def test_fields_take_texts(rng):
    call = field_calls(lambda a: a, rng)
    np.testing.assert_array_equal(call(gap()), call(abs(mc.x - mc.z)))


def test_fields_run_the_text_on_a_gpu(rng):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    call = field_calls(lambda a: torch.from_numpy(a).cuda(), rng)
    twice = mc.ptx("sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out}; add.f32 {out}, {out}, {out};",
                   (mc.x, mc.z), meaning=lambda a, b: abs(a - b))  # fmt: skip
    np.testing.assert_allclose(
        call(twice).cpu(), call(2 * abs(mc.x - mc.z)).cpu(), rtol=1e-5, atol=1e-4
    )


def test_on_cpus_it_is_its_meaning(rng):
    x, z = rng.random((7, 5), "f"), rng.random((9, 5), "f")
    f = mc.exp(-mc.sum(gap()) / mc.param("bandwidth"))
    plain = "exp(-sum(abs(x-z))/bandwidth)"
    np.testing.assert_array_equal(
        mc.pairwise(f, x, z, bandwidth=2.0), mc.pairwise(plain, x, z, bandwidth=2.0)
    )
    assert mc.differentiate(f, "x").same(mc.differentiate(plain, "x"))
    assert not f.symmetric


REFUSED = {
    "placeholder": (lambda: mc.ptx("neg.f32 {out}, {1};", mc.x, meaning=lambda a: -a),
                    "ptx: the inputs of the text are {0} to {0}, not {1}. Received"),
    "no output": (lambda: mc.ptx("neg.f32 t, {0};", mc.x, meaning=lambda a: -a),
                  "ptx: the text must write {out}"),
    "empty": (lambda: mc.ptx("", mc.x, meaning=lambda a: -a), "ptx: the text has at least one"),
    "braces": (lambda: mc.ptx("{ neg.f32 {out}, {0};", mc.x, meaning=lambda a: -a),
               "ptx: every '{' of the text is closed"),
    "quotes": (lambda: mc.ptx('neg.f32 {out}, {0};"', mc.x, meaning=lambda a: -a),
               "ptx: the text is printable ASCII without quotes"),
    "inputs": (lambda: mc.ptx("neg.f32 {out}, {0};", [mc.x] * 9, meaning=mc.x),
               "ptx: a text has 0 to 8 inputs. Received 9"),
    "reads none": (lambda: mc.ptx("neg.f32 {out}, {0};", (), meaning=1.0),
                   "ptx: a text without inputs reads none, but {0}. Received"),
    "constant": (lambda: mc.ptx("mov.f32 {out}, 0f3F800000;", (), meaning=mc.x),
                 "ptx: the meaning is a function of the inputs"),
    "type": (lambda: mc.ptx("cvt.rn.f32.f64 {out}, {0:f64};", mc.x, meaning=lambda a: a),
             "ptx: the types of values are f32, u32 and pred, not 'f64'. Received"),
    "types": (lambda: mc.ptx("not.b32 {out:u32}, {0:u32}; mov.f32 {out:f32}, {0};", mc.x,
                             meaning=lambda a: a),
              "ptx: a value has one type in all of its places, but {out:f32} was u32 before"),
    "leaves": (lambda: mc.ptx("neg.f32 {out}, {0};", mc.x, meaning=-mc.z),
               "ptx: the meaning is a function of the inputs"),
    "outputs": (lambda: mc.ptx(MIN_MAX, (mc.x, mc.z), 2, meaning=lambda a, b: a),
                "ptx: the meaning must have one expression per output. Received 1 for 2"),
    "one of two": (lambda: mc.ptx(MIN_MAX, (mc.x, mc.z), meaning=lambda a, b: a),
                   "ptx: every output of the text has a meaning. Received 1 for the 2 outputs"),
}  # fmt: skip


COMPUTES = "the text computes and does nothing else"
FORBIDDEN = {
    "ld.global.f32 {out}, [{0}];": COMPUTES, "atom.add.f32 {out}, [t], {0};": COMPUTES,
    "st.shared.f32 [t], {0}; mov.f32 {out}, {0};": COMPUTES,
    "red.global.add.f32 [t], {0}; mov.f32 {out}, {0};": COMPUTES,
    "bar.sync 0; mov.f32 {out}, {0};": COMPUTES, "barrier.sync 0; mov.f32 {out}, {0};": COMPUTES,
    "membar.gl; mov.f32 {out}, {0};": COMPUTES, "fence.sc.cta; mov.f32 {out}, {0};": COMPUTES,
    "shfl.sync.bfly.b32 {out}, {0}, 1, 31, -1;": COMPUTES, "mov.f32 {out}, {0}; exit;": COMPUTES,
    "vote.sync.any.pred p, q, -1; mov.f32 {out}, {0};": COMPUTES,
    "match.any.sync.b32 {out}, {0}, -1;": COMPUTES, "redux.sync.add.s32 {out}, {0}, -1;": COMPUTES,
    "{ .reg .b32 m; activemask.b32 m; mov.f32 {out}, {0}; }": COMPUTES,
    "@{0:pred} bra OUT; mov.f32 {out}, 0f00000000;": "but not 'bra'",
    "@!{0:pred} ld.f32 {out}, [t];": "but not 'ld.f32'",
    "{ L: @{0:pred} st.f32 [t], {0}; mov.f32 {out}, 0f00000000; }": "but not 'st.f32'",
    "bra.uni OUT; mov.f32 {out}, {0};": COMPUTES,
    "brx.idx {0:u32}, t; mov.f32 {out}, {0};": COMPUTES,
    "elect.sync t|p, -1; mov.f32 {out}, {0};": COMPUTES,
    "mbarrier.arrive.b64 t, [s]; mov.f32 {out}, {0};": COMPUTES,
    "ldmatrix.sync.aligned.m8n8.x1.b16 {out}, [t]; mov.f32 {out}, {0};": COMPUTES,
    "setmaxnreg.dec.sync.aligned.u32 24; mov.f32 {out}, {0};": COMPUTES,
    "mov.u32 {out:u32}, %warpid; add.f32 {out}, {out}, {0};": "but not '%warpid'",
    "mov.u32 {out:u32}, %lanemask_lt; add.f32 {out}, {out}, {0};": "but not '%lanemask_lt'",
    "mov.u32 {out:u32}, %ctaid.x; add.f32 {out}, {out}, {0};": "but not '%ctaid.x'",
    "{ .reg .pred p; setp.lt.f32 p, {0}, 0f00000000; @p bra L; L: mov.f32 {out}, {0}; }": COMPUTES,
    "call (t), sinf, ({0}); mov.f32 {out}, {0};": COMPUTES, "ret; mov.f32 {out}, {0};": COMPUTES,
    "trap; mov.f32 {out}, {0};": COMPUTES, "@p ld.f32 {out}, [{0}];": COMPUTES,
    "{ L: st.f32 [t], {0}; mov.f32 {out}, {0}; }": COMPUTES,
    "prefetch.L1 [t]; mov.f32 {out}, {0};": COMPUTES,
    "nanosleep.u32 1; mov.f32 {out}, {0};": COMPUTES,
    "tex.1d.v4.f32.f32 {out}, [t, {0}];": COMPUTES,
    "cp.async.wait_all; mov.f32 {out}, {0};": COMPUTES,
    "wgmma.fence.sync.aligned; mov.f32 {out}, {0};": COMPUTES,
    "mov.b32 {out}, %laneid; add.f32 {out}, {out}, {0};": "but not '%laneid'",
    "mov.b32 {out}, %tid.x; add.f32 {out}, {out}, {0};": "but not '%tid.x'",
    "mov.u32 {out}, %clock; add.f32 {out}, {out}, {0};": "but not '%clock'",
    "{ .reg .u32 %t; mov.u32 %t, %smid; mov.f32 {out}, {0}; }": "but not '%smid'",
    "{ .shared .f32 t; mov.f32 {out}, {0}; }": "registers (.reg) only, not '.shared'",
    "{ .local .b8 t[4]; mov.f32 {out}, {0}; }": "registers (.reg) only, not '.local'",
}  # fmt: skip


@pytest.mark.parametrize("text", FORBIDDEN)
def test_texts_that_do_more_than_compute(text):
    with pytest.raises(ValueError) as error:
        mc.ptx(text, mc.x, meaning=lambda a: a)
    assert FORBIDDEN[text] in str(error.value)
    with pytest.raises(ValueError, match="ptx"):
        mc.parse(f'ptx("{text}", x; x)')


def test_registers_of_ones_own_and_labels_are_fine():
    for text in ("{ .reg .f32 %f<3>; add.f32 %f1, {0}, {0}; mov.f32 {out}, %f1; }",
                 "{ .reg .v2 .f32 %v; mov.f32 %v.x, {0}; mov.f32 {out}, %v.x; }",
                 "{ .reg .pred p; setp.lt.f32 p, {0}, 0f00000000; @!p neg.f32 {out}, {0}; }",
                 "{ L: abs.f32 {out}, {0}; }", "{ .reg .b32 a, b; lop3.b32 a, {0}, 1, 2, 0xE8; "
                 "cvt.rn.f32.s32 {out}, a; }"):  # fmt: skip
        assert mc.ptx(text, mc.x, meaning=abs).parameters == {}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named(case):
    call, words = REFUSED[case]
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_an_input_is_an_expression():
    with pytest.raises(TypeError, match=r"ptx: an input must be an expression or a number"):
        mc.ptx("neg.f32 {out}, {0};", "x", meaning=lambda a: -a)


def test_kernels_of_gpus_hold_the_text():
    explained = mc.explain(mc.sum(gap()), shape=(100, 100, 50), target="sm_90")
    assert GAP in str(explained)


@pytest.mark.skipif("NVRTC: none" in mc.info(), reason="needs NVRTC")
def test_the_assemblers_errors_name_the_text():
    f = mc.sum(mc.ptx("sub.f33 {out}, {0}, {1};", (mc.x, mc.z), meaning=lambda a, b: a - b))
    with pytest.raises(mc.CompileError, match=r"sub\.f33 \{out\}, \{0\}, \{1\};"):
        mc.compile(f, shapes=[(4096, 4096, 32)], devices=["sm_90a"])
