"""Arrays of any library go in, checked as scikit-learn checks them, and results come back alike."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_non_negative,
    validate_data,
)

from mercer._progress import shown, wanted_by
from mercer.models._spread import Ready, fitted, kind_of, require_memory

_LIBRARIES = {"torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}
_NONE = "no_validation"  # scikit-learn's word for "there is no y here"


def library_of(array: Any) -> str:
    """ "torch", "cupy" or "jax" for their arrays, "numpy" for all else."""
    return _LIBRARIES.get(type(array).__module__.partition(".")[0], "numpy")


def device_of(array: Any) -> str:
    """ "cpu", or "cuda:0" and the like."""
    library = library_of(array)
    if library == "torch":
        return str(array.device)
    if library == "cupy":
        return f"cuda:{array.device.id}"
    if library == "jax":
        device = next(iter(array.devices()))
        return "cpu" if device.platform == "cpu" else f"cuda:{device.id}"
    return "cpu"


def refuse_mask(array: Any, name: str) -> None:
    """scikit-learn's checks would forget it."""
    if isinstance(array, np.ma.MaskedArray):
        raise NotImplementedError(
            f"{name} must have no mask: masked values would count as any others. Received a "
            "masked array"
        )


def host(array: Any) -> Any:
    """The array in NumPy's memory; None and what is no array of another library as they are."""
    refuse_mask(array, "an array")
    kind = kind_of(array)
    if kind is not None:
        array = array.compute() if kind == "dask" else array.detach().full_tensor()
    library = library_of(array)
    if library == "torch":
        tensor = array.detach().cpu()
        return (tensor.double() if tensor.dtype.itemsize == 2 else tensor).numpy()
    if library == "cupy":
        return array.get()
    return np.asarray(array) if library == "jax" else array


@dataclass(frozen=True)
class Space:
    """The library, device and dtype that a fit computes in; it pickles as three words.

    Arrays of all three libraries share operators, indexing, ``sum(axis)``, ``reshape`` and the
    functions of ``xp`` whose names and arguments agree: sqrt, exp, log, abs, where, concatenate,
    einsum, isfinite.
    """

    library: str = "numpy"
    device: str = "cpu"
    dtype: str = "float64"

    @property
    def xp(self) -> Any:
        return importlib.import_module(self.library)

    @property
    def on_device(self) -> bool:
        """Whether the host may wait for results, and has them to fetch."""
        return self.device != "cpu"

    def of(self, dtype: str) -> Space:
        """This space with another dtype."""
        return Space(self.library, self.device, dtype)

    def array(self, a: Any) -> Any:
        """``a`` as a contiguous array of this space, which is ``a`` itself where it is one."""
        if self.library == "numpy":
            return np.ascontiguousarray(host(a), dtype=self.dtype)
        if self.library == "torch":
            return self._tensor(a)
        with self.xp.cuda.Device(int(self.device.rpartition(":")[2])):
            source = a if library_of(a) == "cupy" else self._lent(a)
            return self.xp.ascontiguousarray(source, dtype=self.dtype)

    def _tensor(self, a: Any) -> Any:
        tensor = a.detach() if library_of(a) == "torch" else self._lent(a)
        return tensor.to(self.device, getattr(self.xp, self.dtype)).contiguous()

    def _lent(self, a: Any) -> Any:
        """Without a copy where both libraries are on a CUDA device."""
        if library_of(a) != "numpy" and device_of(a) != "cpu":
            return self.xp.from_dlpack(a)
        values = np.ascontiguousarray(host(a))
        writeable = values if values.flags.writeable else values.copy()
        return self.xp.from_numpy(writeable) if self.library == "torch" else writeable

    def empty(self, *shape: int) -> Any:
        return self._made("empty", shape)

    def zeros(self, *shape: int) -> Any:
        return self._made("zeros", shape)

    def _made(self, name: str, shape: tuple[int, ...]) -> Any:
        if self.library == "torch":
            dtype = getattr(self.xp, self.dtype)
            return getattr(self.xp, name)(shape, dtype=dtype, device=self.device)
        if self.library == "numpy":
            return getattr(np, name)(shape, self.dtype)
        with self.xp.cuda.Device(int(self.device.rpartition(":")[2])):
            return getattr(self.xp, name)(shape, self.dtype)

    def counted(self, n: int) -> Any:
        """0, 1 ... n - 1 in int64."""
        if self.library == "torch":
            return self.xp.arange(n, device=self.device)
        if self.library == "numpy":
            return np.arange(n)
        with self.xp.cuda.Device(int(self.device.rpartition(":")[2])):
            return self.xp.arange(n)

    def index(self, i: Any) -> Any:
        """Row numbers of the host as an index of arrays of this space."""
        i = np.asarray(i)
        return i if self.library == "numpy" else self.xp.asarray(i, device=self.device) if (
            self.library == "torch"
        ) else self.xp.asarray(i)  # fmt: skip

    def sums(self, *arrays: Any) -> np.ndarray:
        """Sums of the columns [k] of a [n, k], in float64 on the host; of several [m, k], which
        one copy from a device brings."""
        wide = self.of("float64")
        found = [wide.array(a).sum(0) for a in arrays]
        return np.asarray(host(found[0] if len(found) == 1 else self.xp.stack(found)))

    def norms(self, a: Any) -> np.ndarray:
        """Euclidean lengths of the columns [k] of a [n, k], in float64 on the host."""
        wide = self.of("float64").array(a)
        return np.sqrt(self.sums(wide * wide))


def space_of(X: Any, device: str | None = None, dtype: str = "float64") -> Space:
    """Where to compute with X: in its own library; JAX's arrays lend theirs to NumPy or PyTorch."""
    library, place = library_of(X), device_of(X)
    if device is not None and device.partition(":")[0] != place.partition(":")[0]:
        place = device
    if place == "cpu":
        return Space("torch" if library == "torch" else "numpy", "cpu", dtype)
    if library not in ("torch", "cupy"):
        library = "torch" if _torch_has_cuda() else "cupy"
    if library == "cupy" and importlib.util.find_spec("cupy") is None:
        raise ValueError(
            f"device={device!r} needs a CUDA device that PyTorch or CuPy can use. Received none"
        )
    return Space(library, place if ":" in place else f"{place}:0", dtype)


def _torch_has_cuda() -> bool:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def like(result: Any, sample: Any) -> Any:
    """A computed array in the library and on the device of ``sample``, the caller's array."""
    library = library_of(sample)
    if kind_of(sample) == "dask":
        dask, result = sys.modules["dask.array"], host(result)
        return dask.from_array(result, chunks=(sample.chunks[0], *result.shape[1:]))
    if library == "numpy":
        return host(result)
    if library == "torch":
        dtype = str(result.dtype).rpartition(".")[2]
        return Space("torch", str(sample.device), dtype).array(result)
    if library == "cupy":
        return Space("cupy", device_of(sample), str(result.dtype).rpartition(".")[2]).array(result)
    jax = sys.modules["jax"]
    placed = jax.dlpack.from_dlpack(result) if device_of(result) != "cpu" else host(result)
    return jax.device_put(placed, next(iter(sample.devices())))


@dataclass
class Data:
    """What an estimator computes with, and the way back to the caller."""

    x: Any  # [n, d], contiguous, in space
    y: Any  # [n] or [n, k] in space; labels stay on the host; None without one
    weights: Any  # [n] in space, all positive unless rows of weight 0 were kept; or None
    space: Space
    like: Callable[[Any], Any]


def validate(
    estimator: Any,
    X: Any,
    y: Any = _NONE,
    *,
    sample_weight: Any = None,
    reset: bool = True,
    device: str | None = None,
    space: Space | None = None,
    labels: bool = False,
    multi_output: bool = False,
    keep_rows: bool = False,
    chunks: bool = False,
    min_samples: int = 1,
    reads: bool = True,
) -> Data:
    """X, y and weights, checked by scikit-learn with its errors, in one space.

    space: that of a fit before, for predictions; without it float32 stays float32 and all else is
    computed in float64, where X is or on ``device``. labels: y is of classes and stays on the host.
    Rows of weight 0 are left out unless ``keep_rows``. chunks: an array of Dask is taken. reads:
    with False nothing is looked at in arrays of other libraries than NumPy, neither for NaN nor for
    weights of 0 and below.
    """
    if isinstance(X, Ready):
        return Data(X, None, None, space or Space(), lambda result: result)
    for name, given in (("X", X), ("y", y), ("sample_weight", sample_weight)):
        refuse_mask(given, f"{type(estimator).__name__}: {name}")
    if not (chunks or (reset and kind_of(X) in getattr(estimator, "_takes", ()))):
        require_memory(estimator, X)
    if library_of(X) == "numpy" or labels:
        y = host(y)
    options: dict[str, Any] = {"reset": reset, "ensure_min_samples": min_samples}
    options["dtype"] = [np.float64, np.float32]
    if y is not _NONE and y is not None:
        options |= {"multi_output": multi_output, "y_numeric": not labels}
    x, target, shell = _checked(estimator, X, y, options, reads)
    space = space or space_of(X, device, _dtype(x))
    if reads or library_of(sample_weight) == "numpy":
        weights = _weights(sample_weight, shell)
    else:
        _check_sample_weight(_shell(sample_weight) + 1, shell)
        weights, keep_rows = sample_weight, True
    in_chunks = kind_of(x) == "dask"
    if space.device != "cpu" and device_of(x) == "cpu":
        from mercer.models import _memory

        n, d = x.shape
        _memory.require_points(n, d, space, type(estimator).__name__)
    x = x.astype(space.dtype) if in_chunks else space.array(x)
    if target is not None and not labels:
        target = space.array(target)
    if weights is not None:
        if not keep_rows and not weights.all():
            kept = space.index(np.flatnonzero(weights))
            x = x[kept] if in_chunks else space.array(x[kept])
            target = target if target is None else target[host(kept) if labels else kept]
            weights = weights[weights > 0]
        weights = space.array(weights)
    return Data(x, target, weights, space, functools.partial(like, sample=X))


def _dtype(x: Any) -> str:
    return "float32" if str(x.dtype).endswith("float32") else "float64"


def _checked(estimator: Any, X: Any, y: Any, options: dict[str, Any],
             reads: bool) -> tuple[Any, Any, Any]:  # fmt: skip
    """(x, y or None, what has X's shape on the host)."""
    no_y = y is None or y is _NONE
    passed = {} if y is _NONE else {"y": y}
    if kind_of(X) == "dask":
        return _checked_chunks(estimator, X, passed, options)
    if library_of(X) == "numpy":
        checked = validate_data(estimator, X, **passed, **options)
        x, target = (checked, None) if no_y else checked
        return x, target, x
    shell = _shell(X) if X.ndim == 2 else host(X)
    if not no_y and library_of(y) != "numpy":
        passed["y"] = _shell(y)
    checked = validate_data(estimator, shell, **passed, **options)
    if reads:
        _refuse_infinite(X, "X", estimator)
    if no_y:
        return X, None, shell
    if passed["y"] is y:
        return X, checked[1], shell
    if reads:
        _refuse_infinite(y, "y", estimator)
    return X, y.reshape(checked[1].shape), shell


def _checked_chunks(estimator: Any, X: Any, passed: dict, options: dict) -> tuple[Any, Any, Any]:
    """Infinities are looked for at once before a fit, later when chunks are computed."""
    from mercer.models import _chunks

    name = type(estimator).__name__
    X = _chunks.points_of(name, X)
    shell = _shell(X)
    checked = validate_data(estimator, shell, **passed, **options)
    if options["reset"]:
        _chunks.refuse_infinite(X, name)
    else:
        X = _chunks.finite(X, name)
    return X, checked[1] if isinstance(checked, tuple) else None, shell


def _shell(array: Any) -> np.ndarray:
    """Zeros of the array's shape in no memory, for scikit-learn's checks of shapes and dtypes."""
    name = str(array.dtype).rpartition(".")[2]
    dtype = name if name in ("float32", "complex64", "complex128") else "float64"
    return np.broadcast_to(np.zeros((), dtype), tuple(array.shape))


def _refuse_infinite(array: Any, name: str, estimator: Any) -> None:
    """One sum where the array is; scikit-learn's error, for which it moves, where that is NaN."""
    if not np.isfinite(float(array.sum())):
        assert_all_finite(host(array), input_name=name, estimator_name=type(estimator).__name__)


def _weights(sample_weight: Any, shell: Any) -> np.ndarray | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(host(sample_weight), shell, dtype=np.float64)
    check_non_negative(weights, "`sample_weight`")
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights


class _ExactProducts(contextlib.ContextDecorator):
    """Meanwhile PyTorch's products of float32 on CUDA devices keep their digits: what a caller lets
    them lose (TF32) makes factors wrong. Calls may nest, and threads share the setting."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._restore = self._set()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._restore()

    def _set(self) -> Callable[[], None]:
        if "torch" not in sys.modules:
            return lambda: None
        matmul = sys.modules["torch"].backends.cuda.matmul
        new = hasattr(matmul, "fp32_precision")  # since PyTorch 2.9
        name, exact = ("fp32_precision", "ieee") if new else ("allow_tf32", False)
        before = getattr(matmul, name)
        if before != exact:
            setattr(matmul, name, exact)
        return lambda: None if before == exact else setattr(matmul, name, before)


exact_products = _ExactProducts()
if hasattr(os, "register_at_fork"):  # the lock of a thread that the child does not have
    os.register_at_fork(after_in_child=lambda: _ExactProducts.__init__(exact_products))


def restores(method: Callable[..., Any]) -> Callable[..., Any]:
    """For fit and its like: a call that raises or is interrupted leaves the estimator as it was."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        before = dict(vars(self))
        try:
            with exact_products, shown(f"{type(self).__name__}.{method.__name__}",
                                       wanted_by(self)):  # fmt: skip
                if any(map(kind_of, (*arguments, *named.values()))):
                    return fitted(self, method, arguments, named)
                found = method(self, *arguments, **named)
            vars(self).pop("_in_chunks", None)
            return found
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return call


def shows(method: Callable[..., Any]) -> Callable[..., Any]:
    """For what computes without writing a result: a bar, where the estimator's progress says so."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        with shown(f"{type(self).__name__}.{method.__name__}", wanted_by(self)):
            return method(self, *arguments, **named)

    return call


class RegressorScore:
    """``score`` for arrays of any library: scikit-learn's metrics want NumPy's."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination of ``self.predict(X)``; y: [n] or [n, k]."""
        from sklearn.metrics import r2_score

        predicted = host(self.predict(X))  # type: ignore[attr-defined]
        return float(r2_score(host(y), predicted, sample_weight=host(sample_weight)))


class ClassifierScore:
    """``score`` for arrays of any library: scikit-learn's metrics want NumPy's."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The fraction of the labels y [n] that ``self.predict(X)`` gives."""
        from sklearn.metrics import accuracy_score

        predicted = host(self.predict(X))  # type: ignore[attr-defined]
        return float(accuracy_score(host(y), predicted, sample_weight=host(sample_weight)))
