"""What is refused, with which class and which words: the rule, what was received, what to write."""

from __future__ import annotations

import re

import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")

X, Z = np.ones((4, 3), "f"), np.ones((5, 3), "f")
TX = torch.ones(4, 3)


def misaligned():
    return np.zeros(4 * 12 + 1, "u1")[1:].view("f").reshape(4, 3)


def read_only():
    out = np.empty((4, 5), "f")
    out.flags.writeable = False
    return out


DTYPE = "must be float16, bfloat16, float32, float64 or uint8. Received "

# (what is called, its class, its words)
REFUSED = {
    "ints": (lambda: mc.cdist(X.astype("i8"), Z), mc.DtypeError,
             f"cdist: x {DTYPE}int64; write x.astype('float32')"),
    "int32 of z": (lambda: mc.cdist(X, Z.astype("i4")), mc.DtypeError,
                   f"cdist: z {DTYPE}int32; write z.astype('float32')"),
    "bools": (lambda: mc.cdist(X.astype(bool), Z), mc.DtypeError,
              f"cdist: x {DTYPE}bool; write x.astype('float32')"),
    "torch ints": (lambda: mc.cdist(TX.int(), None), mc.DtypeError,
                   f"cdist: x {DTYPE}torch.int32; write x.float()"),
    "complex": (lambda: mc.cdist(X.astype("c8"), None), mc.DtypeError, f"x {DTYPE}complex64"),
    "text": (lambda: mc.cdist(np.array([["a"]]), None), mc.DtypeError, f"x {DTYPE}<U1"),
    "objects": (lambda: mc.cdist(X.astype(object), None), mc.DtypeError, f"x {DTYPE}object"),
    "long double": (lambda: mc.cdist(X.astype("g"), None), mc.DtypeError, f"x {DTYPE}"),
    "byte order": (lambda: mc.cdist(X.astype(">f4"), Z), mc.DtypeError,
                   "Received >f4; write x.astype(x.dtype.newbyteorder('='))"),
    "two dtypes": (lambda: mc.cdist(X, Z.astype("d")), mc.DtypeError,
                   "cdist: x and z must have one dtype. Received float32 and float64"),
    "misaligned": (lambda: mc.cdist(misaligned(), Z), ValueError, "pass x.copy()"),
    "a list": (lambda: mc.cdist([[1.0]], Z), ValueError,
               "Received builtins.list; write numpy.asarray(x)"),
    "None for x": (lambda: mc.cdist(None, Z), TypeError, "cdist"),
    "mixed": (lambda: mc.cdist(X, torch.ones(5, 3)), ValueError,
              "cdist: z must come from the library of x, numpy. Received an array of torch"),
    "mixed out": (lambda: mc.cdist(TX, None, out=np.empty((4, 4), "f")), ValueError,
                  "out must come from the library of x, torch"),
    "one axis": (lambda: mc.cdist(X[0], Z), ValueError,
                 "x must have the shape [..., M, K]. Received float32[3]"),
    "features differ": (lambda: mc.cdist(X, Z[:, :2]), ValueError,
                        "x and z must have the same number of features"),
    "batches differ": (lambda: mc.cdist(np.ones((2, 4, 3)), np.ones((3, 5, 3))), ValueError,
                       "broadcast"),
    "shape of out": (lambda: mc.cdist(X, Z, out=np.empty((4, 4), "f")), ValueError, "out"),
    "dtype of out": (lambda: mc.cdist(X, Z, out=np.empty((4, 5), "i8")), ValueError, "out"),
    "read-only out": (lambda: mc.cdist(X, Z, out=read_only()), ValueError,
                      "cdist: out must be writable. Received a read-only array"),
    "out overlaps x": (lambda: mc.cdist(X[:, :2], X[:3, :2], out=X[:, :3]), ValueError, "overlap"),
    "gradients": (lambda: mc.cdist(torch.ones(4, 3, requires_grad=True), None),
                  NotImplementedError, "pass x.detach(), or see kernel_gradient"),
    "negated view": (lambda: mc.cdist(torch.ones(4, 3, dtype=torch.cfloat).conj().imag, None),
                     ValueError, "x.resolve_neg()"),
    "other device": (lambda: mc.cdist(torch.ones(4, 3, device="meta"), None),
                     NotImplementedError, "must be a dense array on the CPU or on a CUDA device"),
    "sparse": (lambda: mc.cdist(TX.to_sparse(), None), NotImplementedError, "torch.sparse_coo"),
    "unknown metric": (lambda: mc.cdist(X, Z, metric="euclidian"), ValueError, "euclidean"),
    "p that is no number": (lambda: mc.cdist(X, Z, np.nan), ValueError, "nan"),
    "negative p": (lambda: mc.cdist(X, Z, -1), ValueError, "-1"),
    "p of another type": (lambda: mc.cdist(X, Z, "2"), TypeError,
                          "cdist: p must be a number. Received '2'"),
    "grammar": (lambda: mc.pairwise("sum(x*z", X, Z), ValueError, "^"),
    "unknown parameter": (lambda: mc.pairwise("sum(x*z)", X, Z, q=1.0), ValueError, '"q"'),
    "missing parameter": (lambda: mc.pairwise("sum(x*z)*q", X, Z), ValueError, "q"),
    "text for a parameter": (lambda: mc.pairwise("sum(x*z)*q", X, Z, q="1"), TypeError,
                             "the parameter q must be a number, an array or a list of numbers"),
    "a parameter of bytes": (lambda: mc.pairwise("sum(x*z)*q", X, Z, q=np.ones(3, "u1")),
                             ValueError, 'the parameter "q" must be a number or an array'),
    "no formula": (lambda: mc.pairwise(3, X, Z), TypeError,
                   "f must be an Expr, a text, a name of the zoo or a function of (x, z, …)"),
    "x outside reductions": (lambda: mc.pairwise("x*z", X, Z), ValueError, "x"),
    "offset": (lambda: mc.pairwise("sum(x*z)", X, Z, i_offset=0.5), TypeError,
               "i_offset must be a whole number of 64 bits. Received 0.5"),
    "k too large": (lambda: mc.knn("euclidean", X, Z, 6), ValueError,
                    "knn: k must be from 1 to the number of points of z (5). Received 6."),
    "knn out": (lambda: mc.knn("euclidean", X, Z, 2, out=np.empty((4, 2))), TypeError,
                "out must be a pair of arrays (values, indices)"),
    "reduce": (lambda: mc.kernel_reduce("euclidean", X, Z, "mean"), ValueError, "mean"),
    "nothing to reduce": (lambda: mc.kernel_reduce("euclidean", X, Z[:0], "max"), ValueError,
                          "max"),
    "target": (lambda: mc.set_target("avx"), ValueError, "x86_avx2"),
    "threads": (lambda: mc.set_num_threads(-1), ValueError, "Received -1"),
    "unread weights": (lambda: mc.pairwise("sum(x*z)", X, Z, w=X[0]), ValueError, "w"),
    "a metric without weights": (lambda: mc.cdist(X, Z, metric="chi2", w=X[0]), ValueError, "w"),
    "dtype of explain": (lambda: mc.explain("sum(x*z)", dtype="int8"), ValueError, '"int8"'),
    "shape of explain": (lambda: mc.explain("sum(x*z)", shape=(1, 2)), ValueError, "(M, N, K)"),
    "v of another length": (lambda: mc.kernel_product("sum(x*z)", X, Z, X[:, 0]), ValueError, "v"),
    "coef of another length": (lambda: mc.kernel_gradient("sum(x*z)", X, Z, X[:, 0]), ValueError,
                               "coef"),
    "operand": (lambda: mc.exp("x"), TypeError,
                "exp: expected an expression or a number. Received str"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_a_wrong_dtype_is_a_value_error_and_a_type_error():
    assert issubclass(mc.DtypeError, ValueError)
    assert issubclass(mc.DtypeError, TypeError)


def test_classes():
    assert issubclass(mc.LinAlgError, np.linalg.LinAlgError)
    assert issubclass(mc.CompileError, RuntimeError)
    assert issubclass(mc.DeviceError, RuntimeError)


def test_nothing_is_written_when_refused():
    out = np.full((4, 5), 7, "f")
    with pytest.raises(ValueError, match="q"):
        mc.pairwise("sum(x*z)*q", X, Z, out=out)
    np.testing.assert_array_equal(out, 7)
