"""What is refused, with which class and which words: the rule, what was received, what to write."""

from __future__ import annotations

import re

import mercer as mc
import numpy as np
import pytest
from mercer import _mercer

pytestmark = pytest.mark.quick

torch = pytest.importorskip("torch")
scipy_sparse = pytest.importorskip("scipy.sparse")
ml_dtypes = pytest.importorskip("ml_dtypes")

X, Z = np.ones((4, 3), "f"), np.ones((5, 3), "f")
TX = torch.ones(4, 3)


def misaligned():
    return np.zeros(4 * 12 + 1, "u1")[1:].view("f").reshape(4, 3)


def read_only_dlpack():
    array = read_only()
    return Dlpack(lambda **options: array.__dlpack__(**options))


def copying_dlpack():
    array = np.empty((4, 5), "f")
    return Dlpack(lambda **options: array.__dlpack__(**{**options, "copy": True}))


class Dlpack:
    """DLPack's methods, and a dtype to name in messages."""

    dtype = np.dtype("f")

    def __init__(self, export):
        self.export = export

    def __dlpack__(self, **options):
        return self.export(**options)

    def __dlpack_device__(self):
        return (1, 0)


def read_only():
    out = np.empty((4, 5), "f")
    out.flags.writeable = False
    return out


DTYPE = "must be float16, bfloat16, float32, float64, uint8, int8 or int32. Received "

# (what is called, its class, its words)
REFUSED = {
    "ints with tensors": (lambda: mc.cdist(X.astype("i8"), TX), mc.DtypeError,
                            f"cdist: x {DTYPE}int64; write x.astype('float32')"),
    "large ints": (lambda: mc.cdist(np.array([[2**53 + 1]]), None), ValueError,
                   "x1 must have whole numbers of at most 2**53, which float64 has exactly. "
                   "Received 9007199254740993"),
    "torch ints with floats": (lambda: mc.cdist(TX, TX.int()), mc.DtypeError,
                                 "x and z must have one dtype. Received float32 and int32"),
    "torch ints": (lambda: mc.cdist(TX.long(), None), mc.DtypeError,
                   f"cdist: x {DTYPE}torch.int64; write x.float()"),
    "complex": (lambda: mc.cdist(X.astype("c8"), None), mc.DtypeError, f"x {DTYPE}complex64"),
    "text": (lambda: mc.cdist(np.array([["a"]]), None), mc.DtypeError, f"x {DTYPE}<U1"),
    "objects": (lambda: mc.cdist(X.astype(object), None), mc.DtypeError, f"x {DTYPE}object"),
    "long double": (lambda: mc.cdist(X.astype("g"), None), mc.DtypeError, f"x {DTYPE}"),
    "byte order": (lambda: mc.cdist(X.astype(">f4"), Z), mc.DtypeError,
                   "Received >f4; write x.astype(x.dtype.newbyteorder('='))"),
    "two dtypes": (lambda: mc.cdist(X, Z.astype("d")), mc.DtypeError,
                   "cdist: x and z must have one dtype. Received float32 and float64"),
    "misaligned": (lambda: mc.cdist(misaligned(), Z), ValueError, "pass x.copy()"),
    "a list with tensors": (lambda: mc.cdist([[1.0]], TX), ValueError,
                              "Received builtins.list; write numpy.asarray(x)"),
    "a list of tensors": (lambda: mc.cdist([TX[0]], None), ValueError, "Received builtins.list"),
    "a list of words": (lambda: mc.cdist([["a"]], None), ValueError, "Received builtins.list"),
    "rows of two lengths": (lambda: mc.cdist([[1.0], [1.0, 2.0]], None), ValueError,
                            "Received builtins.list"),
    "None for x": (lambda: mc.cdist(None, Z), TypeError, "cdist"),
    "mixed": (lambda: mc.cdist(X, torch.ones(5, 3)), ValueError,
              "cdist: z must come from the library of x, numpy. Received an array of torch"),
    "mixed out": (lambda: mc.cdist(TX, None, out=np.empty((4, 4), "f")), ValueError,
                  "out must come from the library of x, torch"),
    "one axis": (lambda: mc.cdist(X[0], Z), ValueError,
                 "x must have the shape [..., M, K]. Received float32[3]"),
    "a mask": (lambda: mc.cdist(np.ma.masked_greater(X, 0), Z), NotImplementedError,
               "cdist: x must have no mask: masked values would count as any others"),
    "features differ": (lambda: mc.cdist(X, Z[:, :2]), ValueError,
                        "x and z must have the same number of features"),
    "batches differ": (lambda: mc.cdist(np.ones((2, 4, 3)), np.ones((3, 5, 3))), ValueError,
                       "broadcast"),
    "shape of out": (lambda: mc.cdist(X, Z, out=np.empty((4, 4), "f")), ValueError, "out"),
    "dtype of out": (lambda: mc.cdist(X, Z, out=np.empty((4, 5), "i8")), ValueError, "out"),
    "read-only out": (lambda: mc.cdist(X, Z, out=read_only()), ValueError,
                      "cdist: out must be writable. Received a read-only array"),
    "an out that gives copies": (lambda: mc.cdist(Dlpack(X.__dlpack__), Dlpack(Z.__dlpack__),
                                                  out=copying_dlpack()),
                                 ValueError, "out must be written in place"),
    "an out read only by DLPack": (lambda: mc.cdist(Dlpack(X.__dlpack__), Dlpack(Z.__dlpack__),
                                                    out=read_only_dlpack()),
                                   ValueError, "out must be writable"),
    "out overlaps x": (lambda: mc.cdist(X[:, :2], X[:3, :2], out=X[:, :3]), ValueError, "overlap"),
    "out with gradients": (lambda: mc.cdist(torch.ones(4, 3, requires_grad=True), None,
                                            out=torch.ones(4, 4)),
                           NotImplementedError, "cdist: out is not offered where PyTorch records"),
    "gradients of weights only": (lambda: mc.cdist(X, None, 1, w=torch.ones(3, requires_grad=True)),
                                  NotImplementedError, "w must not track gradients"),
    "out that tracks gradients": (lambda: mc.cdist(TX, None, out=torch.ones(4, 4,
                                                                           requires_grad=True)),
                                  NotImplementedError, "must not track gradients"),
    "negated view": (lambda: mc.cdist(torch.ones(4, 3, dtype=torch.cfloat).conj().imag, None),
                     ValueError, "x.resolve_neg()"),
    "other device": (lambda: mc.cdist(torch.ones(4, 3, device="meta"), None),
                     NotImplementedError, "must be a dense array on the CPU or on a CUDA device"),
    "sparse": (lambda: mc.cdist(TX.to_sparse(), None), NotImplementedError, "torch.sparse_coo"),
    "unknown metric": (lambda: mc.cdist(X, Z, metric="euclidian"), ValueError, "euclidean"),
    "p that is no number": (lambda: mc.cdist(X, Z, np.nan), ValueError, "nan"),
    "negative p": (lambda: mc.cdist(X, Z, -1), ValueError, "-1"),
    "p of another type": (lambda: mc.cdist(X, Z, [2]), TypeError,
                          "cdist: p must be a number. Received [2]"),
    "a metric in place of p": (lambda: mc.cdist(X, Z, "cityblock"), TypeError,
                               "cdist: p must be a number; the name of a metric goes by keyword "
                               "(metric=). Received 'cityblock'"),
    "several p of a metric": (lambda: mc.cdist(X, Z, metric="minkowski", p=[1, 2]), TypeError,
                              "minkowski: p chooses the formula, so it must be one number. "
                              "Received [1, 2]"),
    "grammar": (lambda: mc.pairwise("sum(x*z", X, Z), ValueError, "^"),
    "unknown parameter": (lambda: mc.pairwise("sum(x*z)", X, Z, q=1.0), ValueError, '"q"'),
    "missing parameter": (lambda: mc.pairwise("sum(x*z)*q", X, Z), ValueError, "q"),
    "text for a parameter": (lambda: mc.pairwise("sum(x*z)*q", X, Z, q="1"), TypeError,
                             "the parameter q must be a number, an array or a list of numbers"),
    "a parameter of int32": (lambda: mc.pairwise("sum(x*z)*q", X, Z, q=np.ones(3, "i4")),
                             mc.DtypeError, 'the parameter "q" must be a number or an array of '
                             "float32, float64 or int64. Received int32[3]"),
    "a parameter of bytes": (lambda: mc.pairwise("sum(x*z)*q", X, Z, q=np.ones(3, "u1")),
                             ValueError, 'the parameter "q" must be a number or an array'),
    "no formula": (lambda: mc.pairwise(3, X, Z), TypeError,
                   "f must be an Expr, a text, a name of the zoo or a function of (x, z, …)"),
    "x outside reductions": (lambda: mc.pairwise("x*z", X, Z), ValueError, "x"),
    "offset": (lambda: mc.pairwise("sum(x*z)", X, Z, i_offset=0.5), TypeError,
               "i_offset must be a whole number of 64 bits. Received 0.5"),
    "offset out of range": (lambda: mc.pairwise("sum(x*z)+i", X, Z, i_offset=-(2**63)), ValueError,
                            "which float32 counts up to 16777216"),
    "k too large": (lambda: mc.knn("euclidean", X, Z, 6), ValueError,
                    "knn: k must be from 1 to the number of points of z (5). Received 6."),
    "knn out": (lambda: mc.knn("euclidean", X, Z, 2, out=np.empty((4, 2))), TypeError,
                "out must be a pair of arrays (values, indices). Received numpy.ndarray"),
    "indices of 32 bits": (lambda: mc.knn("euclidean", X, Z, 2, out=(np.empty((4, 2), "f"),
                                                                    np.empty((4, 2), "i4"))),
                           mc.DtypeError,
                           "knn: indices must be int64. Received int32."),
    "reduce": (lambda: mc.kernel_reduce("euclidean", X, Z, "mean"), ValueError, "mean"),
    "nothing to reduce": (lambda: mc.kernel_reduce("euclidean", X, Z[:0], "max"), ValueError,
                          "max"),
    "target": (lambda: mc.set_target("avx"), ValueError, "x86_avx2"),
    "threads": (lambda: mc.set_num_threads(-1), ValueError, "Received -1"),
    "unread weights": (lambda: mc.pairwise("sum(x*z)", X, Z, w=X[0]), ValueError, "w"),
    "a metric without weights": (lambda: mc.cdist(X, Z, metric="chi2", w=X[0]), ValueError, "w"),
    "dtype of explain": (lambda: mc.explain("sum(x*z)", dtype="int16"), ValueError,
                         '"int16"'),
    "shape of explain": (lambda: mc.explain("sum(x*z)", shape=(1, 2)), ValueError,
                         "explain: shape must be (M, N, K), whole numbers. Received (1, 2)."),
    "text for a shape": (lambda: mc.explain("sum(x*z)", shape=("a", 1, 2)), ValueError,
                         "shape must be (M, N, K)"),
    "shape of a floor": (lambda: _mercer.floor_rate("sum(x*z)", (1, 2), "float32", "auto", 1.0),
                         ValueError, "floor_rate: shape must be (M, N, K)"),
    "dtype of a floor": (lambda: _mercer.gpu_floor("sum(x*z)", (1, 2, 3), "int64", "sm_90"),
                         ValueError, 'gpu_floor: dtype must be float16, bfloat16, float32, '
                         'float64, uint8, int8 or int32. Received "int64".'),
    "device of compile": (lambda: mc.compile("sum(x*z)", shapes=[(4, 4, 4)], devices=[2**40]),
                          ValueError, "compile: devices must be"),
    "no name of a device": (lambda: mc.compile("sum(x*z)", shapes=[(4, 4, 4)], devices=[""]),
                            ValueError, "compile: devices must be"),
    "architecture": (lambda: mc.compile("sum(x*z)", shapes=[(4, 4, 4)], devices=["sm_99999999999"]),
                     ValueError, "compile: devices must be"),
    "params of compile": (lambda: mc.compile("sum(x*z)*h", shapes=[(4, 4, 4)], h=[1, 2]),
                          ValueError, "compile: params must be numbers; leave out those that"),
    "option of the zoo": (lambda: mc.laplace(bandwidth="a"), TypeError,
                          "laplace: bandwidth must be a number or an array, the default of calls."),
    "reduce of tune": (lambda: mc.tune("sum(x*z)", X, Z, verb="kernel_reduce", reduce=3),
                       ValueError, "tune: reduce must be a name. Received 3."),
    "name of a parameter": (lambda: mc.param("h + 1"), ValueError,
                            "param: a name has letters, digits and underscores"),
    "default of a parameter": (lambda: mc.kernel(lambda x, z, h="a": mc.sum(x * z) * h), TypeError,
                               "param: the default of h must be a number or an array. Received"),
    "a function without signature": (lambda: mc.kernel(max), ValueError,
                                     "a function must take the two points first"),
    "v of another length": (lambda: mc.kernel_product("sum(x*z)", X, Z, X[:, 0]), ValueError, "v"),
    "coef of another length": (lambda: mc.kernel_gradient("sum(x*z)", X, Z, X[:, 0]), ValueError,
                               "coef"),
    "operand": (lambda: mc.exp("x"), TypeError,
                "exp: expected an expression, a number or an array of one. Received str"),
    "a truth value": (lambda: mc.where(mc.gauss() == mc.laplace(), 1, 0), TypeError,
                      "where: an operand must be no truth value, since == of two kernels compares "
                      "them as wholes; write 1 or 0, and equal(a, b) for a formula. Received"),
    "a misspelt name to bind": (lambda: mc.gauss().bind(bandwith=5), ValueError,
                                'the formula has no parameter "bandwith" (did you mean '
                                '"bandwidth"?). It has bandwidth.'),
    "a misspelt parameter": (lambda: mc.pairwise("sum(abs(x-z))/bandwidth", X, Z, bandwith=2.0),
                             ValueError, 'no parameter "bandwith" (did you mean "bandwidth"?). It '
                             'has bandwidth.'),
    "a misspelt option": (lambda: mc.cdist(X, Z, progres=True), ValueError,
                          'no parameter "progres" (did you mean "progress"?). It has none.'),
    "a misspelt option of a text": (lambda: mc.kernel_product("sum(x*z)", X, Z, Z, devise="cuda"),
                                    ValueError, 'no parameter "devise" (did you mean "device"?)'),
    "a misspelt option of Python's alone": (
        lambda: mc.cdist(X, Z, metrik="l1"), ValueError,
        'cdist: the formula has no parameter "metrik" (did you mean "metric"?). It has none.'),
    "a misspelt option of pdist": (
        lambda: mc.pdist(X, metrik="l1"), ValueError,
        'pdist: the formula has no parameter "metrik" (did you mean "metric"?). It has none.'),
    "a parameter that paired distances lack": (
        lambda: mc.paired_distances(X, X, metric="gauss", q=1.0), ValueError,
        'paired_distances: the formula has no parameter "q". It has bandwidth.'),
    "the first letters of an option": (lambda: mc.linalg.eigh(X @ X.T, subset=(0, 1)), TypeError,
                                       'no option "subset" (did you mean "subset_by_index"?)'),
    "y= for z=": (lambda: mc.pairwise("euclidean", X, y=Z), ValueError,
                  'the formula has no parameter "y" (did you mean "z"?). It has none.'),
    "weights= for w=": (lambda: mc.cdist(X, Z, weights=X[0]), ValueError,
                        'the formula has no parameter "weights" (did you mean "w"?)'),
    "an unknown parameter": (lambda: mc.pairwise("gauss", X, Z, q=1.0), ValueError,
                             'pairwise: the formula has no parameter "q". It has bandwidth.'),
    "a misspelt array": (lambda: mc.knn("sum(x*z)", X, Z, k=2, otu=None), ValueError,
                         'knn: the formula has no parameter "otu" (did you mean "out"?)'),
    "y for z": (lambda: mc.pairwise("sum(abs(x-y))", X, Z), ValueError,
                """parameter "y" needs a value (did you mean 'z', the points of the columns?)"""),
    "X for x": (lambda: mc.knn("sum(X*z)", X, Z, k=1), ValueError,
                """the parameter "X" needs a value (did you mean 'x', the points of the rows?)"""),
    "a misspelt jitter": (lambda: mc.linalg.cholesky(X @ X.T, jiter=1e-3), TypeError,
                          'cholesky: there is no option "jiter" (did you mean "jitter"?)'),
    "a misspelt option of cg": (lambda: mc.linalg.cg(X, X, maxiter=2), TypeError,
                                'cg: there is no option "maxiter" (did you mean "max_iter"?)'),
    "a misspelt option of a kernel": (lambda: mc.laplace(bandwith=1.0), TypeError,
                                      "'p'] (did you mean \"bandwidth\"?). Received"),
    "an unknown name to bind": (lambda: mc.parse("sum(x*z)").bind(q=5), ValueError,
                                'the formula has no parameter "q". It has none.'),
    "an unknown option of compile": (lambda: mc.compile("gauss", shapes=[(4, 4, 4)], q=1.0),
                                     ValueError, '"q"'),
    "an unknown option of a metric": (lambda: mc.metric("gauss", bandwith=1.0), ValueError,
                                      "gauss: its options are: p, bandwidth (did you mean "
                                      "'bandwidth'?). Received 'bandwith'"),
    "SciPy's sparse": (lambda: mc.kernel_agop("l2", scipy_sparse.csr_matrix(X), Z, Z[:, 0]),
                       NotImplementedError,
                       "kernel_agop: x must be a dense array; sparse ones are not offered. "
                       "Received "
                       "scipy.sparse._csr.csr_matrix; pass x.toarray()"),
    "SciPy's sparse z": (lambda: mc.kernel_gradient("l2", X, scipy_sparse.coo_array(Z), X[0]),
                         NotImplementedError,
                         "z must be a dense array; sparse ones are not offered"),
    "a sparse factor": (lambda: mc.kron.matmul(X, [scipy_sparse.eye(3)]), NotImplementedError,
                        "factors[0] must be a dense array; sparse ones are not offered"),
    "a sparse matrix": (lambda: mc.linalg.cholesky(scipy_sparse.eye(3)), NotImplementedError,
                        "a must be a dense array; sparse ones are not offered"),
    "PyTorch's sparse": (lambda: mc.cdist(TX.to_sparse_csr(), None), NotImplementedError,
                         "Received one on cpu, torch.sparse_csr; pass x.to_dense()"),
    "floats of 8 bits": (lambda: mc.cdist(X.astype(ml_dtypes.float8_e4m3), None), mc.DtypeError,
                         f"cdist: x {DTYPE}float8_e4m3"),
    "dates": (lambda: mc.cdist(np.zeros((2, 2), "M8[s]"), None), mc.DtypeError,
              f"cdist: x {DTYPE}datetime64[s]"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=re.escape(words)):
        call()


D, WHOLE = np.float64, np.int64
SPD, ONES = np.eye(4, dtype="f"), np.ones(4, "f")

# Each argument of each verb but x and z, of an element type that it does not take.
WRONG_DTYPES = {
    "out of pairwise": lambda: mc.pairwise("gauss", X, Z, out=np.empty((4, 5), D)),
    "whole out of pairwise": lambda: mc.pairwise("gauss", X, Z, out=np.empty((4, 5), WHOLE)),
    "row": lambda: mc.pairwise("row*sum(x*z)", X, Z, row=np.ones(4, WHOLE)),
    "col": lambda: mc.pairwise("col*sum(x*z)", X, Z, col=np.ones(5, bool)),
    "w": lambda: mc.cdist(X, Z, 1, w=np.ones(3, WHOLE)),
    "a parameter": lambda: mc.pairwise("sum(x*z)*q", X, Z, q=np.ones((), "f2")),
    "workspace": lambda: mc.cdist(X, Z, workspace=np.empty(4, "f")),
    "v": lambda: mc.kernel_product("gauss", X, Z, np.ones(5, D)),
    "whole v": lambda: mc.kernel_product("gauss", X, Z, np.ones((5, 2), WHOLE)),
    "out of kernel_product": lambda: mc.kernel_product("gauss", X, Z, Z, out=np.empty((4, 3), D)),
    "out of a reduction": lambda: mc.kernel_reduce("gauss", X, Z, "sum", out=np.empty(4, D)),
    "out of argmax": lambda: mc.kernel_reduce("gauss", X, Z, "argmax", out=np.empty(4, "f")),
    "values of knn": lambda: mc.knn("gauss", X, Z, 2, out=(np.empty((4, 2), D),
                                                          np.empty((4, 2), WHOLE))),
    "indices of knn": lambda: mc.knn("gauss", X, Z, 2, out=(np.empty((4, 2), "f"),
                                                           np.empty((4, 2), "f"))),
    "coef": lambda: mc.kernel_gradient("gauss", X, Z, np.ones(5, D)),
    "whole coef": lambda: mc.kernel_gradient("gauss", X, Z, np.ones(5, WHOLE)),
    "out of kernel_gradient": lambda: mc.kernel_gradient("gauss", X, Z, Z[:, 0],
                                                         out=np.empty((4, 3), D)),
    "coef of kernel_agop": lambda: mc.kernel_agop("gauss", X, Z, np.ones(5, D)),
    "out of kernel_agop": lambda: mc.kernel_agop("gauss", X, Z, Z[:, 0], out=np.empty((3, 3), D)),
    "amplitude": lambda: mc.gradient_field("x-z", X, Z, np.ones((4, 5), D), Z[:, 0]),
    "whole amplitude": lambda: mc.gradient_field("x-z", X, Z, np.ones((4, 5), WHOLE), Z[:, 0]),
    "coef of a field": lambda: mc.gradient_field("x-z", X, Z, np.ones((4, 5), "f"), np.ones(5, D)),
    "out of cholesky": lambda: mc.linalg.cholesky(SPD, out=np.empty((4, 4), D)),
    "a": lambda: mc.linalg.cholesky(SPD.astype("f2")),
    "b of solve_cholesky": lambda: mc.linalg.solve_cholesky(SPD, ONES.astype(D)),
    "b of cho_solve": lambda: mc.linalg.cho_solve(SPD, ONES.astype(WHOLE)),
    "b of inv_quad_logdet": lambda: mc.linalg.inv_quad_logdet(SPD, ONES.astype(D)),
    "b of solve_lu": lambda: mc.linalg.solve_lu(SPD, ONES.astype(D)),
    "pivots": lambda: mc.linalg.lu_solve((SPD, np.ones(4, "f")), ONES),
    "out of eigh": lambda: mc.linalg.eigh(SPD, eigvals_only=True, out=np.empty(4, D)),
    "b of cg": lambda: mc.linalg.cg(SPD, ONES.astype(D)),
    "x0 of cg": lambda: mc.linalg.cg(SPD, ONES, x0=ONES.astype(D)),
    "out of cg": lambda: mc.linalg.cg(SPD, ONES, out=ONES.astype(D)),
    "x of an operator": lambda: mc.linalg.KernelOperator("gauss", X.astype("f2")),
    "a of eigh_top": lambda: mc.linalg.eigh_top(SPD.astype("f2"), 1),
    "x of kron": lambda: mc.kron.matmul(X.astype("u1"), [np.eye(3, dtype="u1")]),
    "factors": lambda: mc.kron.matmul(X, [np.eye(3)]),
    "y of kron": lambda: mc.kron.matmul(X, [np.eye(3, dtype="f")], beta=1, y=X.astype(D)),
    "out of kron": lambda: mc.kron.matmul(X, [np.eye(3, dtype="f")], out=X.astype(D)),
    "b of kron.solve": lambda: mc.kron.solve([SPD], ONES.astype(D)),
    "factors that PyTorch follows": lambda: mc.kron.matmul(
        torch.ones(2, 3, requires_grad=True), [torch.eye(3).double()]),
    "v that PyTorch follows": lambda: mc.kernel_product(
        "gauss", TX, None, torch.ones(4, dtype=torch.float64, requires_grad=True)),
    "w that PyTorch follows": lambda: mc.cdist(TX.clone().requires_grad_(), None, 1,
                                               w=TX[0].long()),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_DTYPES)
def test_a_wrong_dtype_is_a_dtype_error(name):
    with pytest.raises(mc.DtypeError):
        WRONG_DTYPES[name]()


@pytest.mark.parametrize("name", ["v", "coef", "amplitude", "row", "w"])
def test_a_wrong_dtype_of_jax_is_a_dtype_error(name):
    jnp = pytest.importorskip("jax.numpy")
    x, whole, half = jnp.ones((4, 3), "f"), jnp.ones(4, "i4"), jnp.ones(4, "?")
    calls = {
        "v": lambda: mc.kernel_product("gauss", x, None, half),
        "coef": lambda: mc.kernel_gradient("gauss", x, None, whole),
        "amplitude": lambda: mc.gradient_field("x-z", x, x, jnp.ones((4, 4), "?"), x[:, 0]),
        "row": lambda: mc.pairwise("row*sum(x*z)", x, row=half),
        "w": lambda: mc.cdist(x, None, 1, w=half[:3]),
    }
    with pytest.raises(mc.DtypeError):
        calls[name]()


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
