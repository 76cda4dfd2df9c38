"""Fits on DTensors: the first rank of the mesh fits, and all ranks share its products.

The first rank runs the fit of one process on all points. Where that asks for rows of a product with
a kernel matrix, each rank computes its part of them: the rank's calls are sent to the others, which
wait for them. So every decision, as when iterations end, is made once, and a fit is that of one
process but for what sums of its products round. The fitted model is then sent to all ranks.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import mercer as mc
from mercer.models._spread import kind_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_team: contextvars.ContextVar[Team | None] = contextvars.ContextVar("team", default=None)


def current() -> Team | None:
    """The team whose first rank computes here."""
    return _team.get()


class _Failed(RuntimeError):
    """A rank's task raised what the text says."""


class Team:
    """The ranks of a mesh of one dimension."""

    def __init__(self, name: str, X: DTensor, functions: dict[str, Any]) -> None:
        import torch.distributed as dist

        self._functions = functions  # that every rank has, by name; they do not pickle
        self.name, self.dist, self.group = name, dist, X.device_mesh.get_group(0)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.first = dist.get_global_rank(self.group, 0)
        self.device = X.to_local().device
        self._held: list[Any] = []  # points that all ranks have

    def require_room(self, X: DTensor) -> None:
        """MemoryError on all ranks where all points do not fit next to those of a rank."""
        import torch

        from mercer.models import _memory
        from mercer.models._arrays import Space

        needed = 2 * X.shape[0] * X.shape[1] * X.dtype.itemsize
        available = _memory.free(Space("torch", str(self.device)))
        lacks = torch.tensor([needed > available], dtype=torch.int32, device=self.device)
        self.dist.all_reduce(lacks, group=self.group)
        if lacks.item():
            raise MemoryError(
                f"{self.name}: all points {list(X.shape)}, which each rank holds, need "
                f"{needed / 2**30:.3g} GiB, and a rank has less. Here {available / 2**30:.3g} GiB "
                "are free. Arrays of Dask stay in their chunks"
            )

    # ---- What the first rank does. --------------------------------------------------------------

    def lead(self, work: Callable[[], Any]) -> Any:
        """The result of the work, that the first rank does and the others help with, on all."""
        if self.rank:
            return self._serve()
        error, found = None, None
        token = _team.set(self)
        try:
            found = work()
        except BaseException as raised:
            error = raised
        finally:
            _team.reset(token)
        if isinstance(error, (mc.DeviceError, self.dist.DistError)):
            raise error
        text, tensors = _packed((error, found), self._functions)
        self._broadcast_call(("end", text, _shapes(tensors)))
        for tensor in tensors:
            self._broadcast(tensor)
        return self._ended(text, tensors)

    def product(self, f: Any, x: Any, z: Any, v: Any, **options: Any) -> Any:
        """``mercer.kernel_product``, a part of the rows on each rank."""
        points = [x] if z is None or z is x else [x, z]
        columns = v if v.ndim == 2 else v[:, None]
        product = self.rows(_product, x.shape[0], points, [columns], f=mc.kernel(f), **options)
        return product if v.ndim == 2 else product[:, 0]

    def gradient(self, f: Any, x: Any, left: Any, right: Any) -> Any:
        """The gradient [n, d] by x of sum_ij f(x_i, x_j) left_i . right_j, f symmetric."""
        return self.rows(_gradient, x.shape[0], [x], [left, right], f=f)

    def rows(self, task: Any, count: int, points: Sequence[Any], others: Sequence[Any],
             **options: Any) -> Any:  # fmt: skip
        """task(rows, *points, *others, **options) [rows, ...] for all of the rows up to count.

        task: a function of this package. points: tensors that are sent where they are new.
        """
        import torch

        kept = len(points) == len(self._held) and all(map(_is, points, self._held))
        sent = [t.contiguous() for t in ([] if kept else points)] + [
            torch.as_tensor(t, device=self.device).contiguous() for t in others
        ]
        options = {key: _plain(value) for key, value in options.items()}
        self._broadcast_call((task, pickle.dumps(options), count, kept, len(points), _shapes(sent)))
        for tensor in sent:
            self._broadcast(tensor)
        self._held = list(points)
        return self._share(task, count, [*points, *sent[len(sent) - len(others) :]], options)

    # ---- What all ranks do. ---------------------------------------------------------------------

    def _serve(self) -> Any:
        import torch

        while True:
            (call,) = self._broadcast_call(None)
            if call[0] == "end":
                tensors = [self._broadcast(None, *spec) for spec in call[2]]
                return self._ended(call[1], tensors)
            task, options, count, kept, many, specs = call
            given = [self._broadcast(None, *spec) for spec in specs]
            if not kept:
                self._held, given = given[:many], given[many:]
            with torch.no_grad(), contextlib.suppress(_Failed):
                self._share(task, count, [*self._held, *given], pickle.loads(options))

    def _share(self, task: Any, count: int, tensors: list[Any], options: dict[str, Any]) -> Any:
        """The rows of all ranks; _Failed where a rank raised."""
        import torch

        each = -(-count // self.size)
        rows = slice(min(each * self.rank, count), min(each * (self.rank + 1), count))
        part: Any = None
        error = ""
        try:
            part = task(rows, *tensors, **options)
        except Exception as raised:
            error = f"rank {self.rank}: {type(raised).__name__}: {raised}"
        failed = torch.tensor([bool(error)], dtype=torch.int32, device=self.device)
        self.dist.all_reduce(failed, group=self.group)
        if failed.item():
            texts: list[Any] = [None] * self.size
            self.dist.all_gather_object(texts, error, group=self.group)
            raise _Failed("; ".join(filter(None, texts)))
        whole = part.new_empty((each * self.size, *part.shape[1:]))
        own = part.new_zeros((each, *part.shape[1:]))
        own[: part.shape[0]] = part
        self.dist.all_gather(list(whole.split(each)), own, group=self.group)
        return whole[:count]

    def _ended(self, text: bytes, tensors: list[Any]) -> Any:
        error, found = _unpacked(text, tensors, self.device, self._functions)
        if error is not None:
            raise error
        return found

    def _broadcast_call(self, call: Any) -> list[Any]:
        from mercer._torch import agreement

        sent = [call]
        with agreement.answered(self.name):
            self.dist.broadcast_object_list(sent, self.first, self.group, self.device)
        return sent

    def _broadcast(self, tensor: Any, shape: Any = None, dtype: Any = None) -> Any:
        import torch

        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        self.dist.broadcast(tensor, self.first, self.group)
        return tensor


def _is(a: Any, b: Any) -> bool:
    return a is b


def _shapes(tensors: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(tuple(t.shape), t.dtype) for t in tensors]


def _plain(value: Any) -> Any:
    """Options go to other ranks by pickle."""
    return value.cpu() if hasattr(value, "cpu") else value


def _product(rows: slice, x: Any, *rest: Any, f: Any, row: Any = None, **options: Any) -> Any:
    z, v = rest if len(rest) == 2 else (x, rest[0])
    options = {k: o.to(x.device) if hasattr(o, "to") else o for k, o in options.items()}
    if row is not None:
        options["row"] = row[rows].to(x.device)
    return mc.kernel_product(f, x[rows], z, v, **_offset(f, rows), **options)


def _gradient(rows: slice, x: Any, left: Any, right: Any, *, f: Any) -> Any:
    """Each pair has both of its points in both places."""
    return gradient_of_rows(f, x[rows], x, (left[rows], right[rows]), (left, right))


def gradient_of_rows(f: Any, rows: Any, x: Any, own: Sequence[Any], every: Sequence[Any]) -> Any:
    """The gradient by some rows of the points x alone; own: left and right of these rows."""
    from mercer._libraries import namespace_of

    xp = namespace_of(rows)
    weights = xp.concatenate(list(own), 1), xp.concatenate(list(every)[::-1], 1)
    return mc.parameter_gradient(f, rows, x, weights=weights, by="x")["x"]


def _offset(f: Any, rows: slice) -> dict[str, Any]:
    from mercer._derived import leaves

    return {"i_offset": rows.start} if leaves(str(f)) & {"i", "j"} else {}


class Shared:
    """A KernelOperator whose products all ranks of a team share, for mercer.linalg's functions."""

    def __init__(self, team: Team, whole: Any, f: Any, x: Any, *, ridge: Any = 0.0,
                 weights: Any = None, **options: Any) -> None:  # fmt: skip
        self.team, self.whole, self._f, self._x, self._options = team, whole, f, x, options
        self.shape, self.dtype = whole.shape, x.dtype
        of_points = getattr(ridge, "ndim", 0) > 0
        self._ridges = ridge[:, None] if of_points else ridge
        self.ridge = float(ridge.min() if of_points else ridge)
        self._roots = None if weights is None else weights[:, None] ** 0.5
        self._mercer_like = x[:0]

    def __reduce__(self) -> Any:
        return whole_of, (self.whole,)

    def __matmul__(self, v: Any) -> Any:
        return self._mercer_multiply(v) if v.ndim == 2 else self._mercer_multiply(v[:, None])[:, 0]

    def _mercer_multiply(self, columns: Any) -> Any:
        s = self._roots
        inner = columns if s is None else s * columns
        product = self.team.product(self._f, self._x, None, inner, **self._options)
        return (product if s is None else s * product) + self._ridges * columns

    def diagonal(self) -> Any:
        return self.whole.diagonal()

    def rows(self, i: Any) -> Any:
        return self.whole.rows(i)


def whole_of(operator: Any) -> Any:
    return operator


# ---- From rank to rank. -------------------------------------------------------------------------


def _packed(value: Any, functions: dict[str, Any]) -> tuple[bytes, list[Any]]:
    """A pickle, and the tensors in it, which go their own way; functions go by their names."""
    import torch

    from mercer.models._arrays import Space

    tensors: list[Any] = []
    places: dict[int, int] = {}
    names = {id(function): name for name, function in functions.items()}

    class Pickler(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            if isinstance(found, Space):
                return "space", found.library, found.device == "cpu", found.dtype
            if id(found) in names:
                return "function", names[id(found)]
            if not isinstance(found, torch.Tensor):
                return None
            if id(found) not in places:
                places[id(found)] = len(tensors)
                tensors.append(found.detach().contiguous())
            return "tensor", places[id(found)], found.device.type == "cpu"

    def written(value: Any) -> bytes:
        text = io.BytesIO()
        Pickler(text).dump(value)
        return text.getvalue()

    try:
        return written(value), tensors
    except Exception as error:
        tensors.clear()
        raised = value[0] or error
        return written((RuntimeError(f"{type(raised).__name__}: {raised}"), None)), tensors


def _unpacked(text: bytes, tensors: list[Any], device: Any, functions: dict[str, Any]) -> Any:
    from mercer.models._arrays import Space

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, told: Any) -> Any:
            kind, *rest = told
            if kind == "function":
                return functions[rest[0]]
            if kind == "tensor":
                place, on_host = rest
                return tensors[place].cpu() if on_host else tensors[place]
            library, on_host, dtype = rest
            return Space(library, "cpu" if on_host else str(device), dtype)

    return Unpickler(io.BytesIO(text)).load()


# ---- Estimators. --------------------------------------------------------------------------------


def fitted(estimator: Any, method: Callable[..., Any], given: dict[str, Any]) -> Any:
    """The fit on all ranks; results of ``fit_transform`` are split as X is."""
    name, X = f"{type(estimator).__name__}.{method.__name__}", given["X"]
    _agree(name, estimator, given)
    own = estimator.get_params(deep=False)
    team = Team(name, X, {key: value for key, value in own.items() if callable(value)})
    team.require_room(X)
    whole = {
        key: value.detach().full_tensor() if kind_of(value) else value
        for key, value in given.items()
    }

    def work() -> Any:
        found = method(estimator, **whole)
        state = {key: value for key, value in vars(estimator).items() if key not in own}
        return state, None if found is estimator else found

    state, found = team.lead(work)
    for key in set(vars(estimator)) - set(own) - set(state):
        delattr(estimator, key)
    vars(estimator).update(state)
    return estimator if found is None else _split(found, X)


def _agree(name: str, estimator: Any, given: dict[str, Any]) -> None:
    """All ranks make the same call with points that are split by rows."""
    from mercer._torch import agreement

    told = {
        key: value
        for key, value in estimator.get_params(deep=False).items()
        if value is None or isinstance(value, (str, int, float))
    }
    tensors = [(key, value) for key, value in given.items() if kind_of(value)]
    agreement.require(name, tensors, [told], lambda: _require_rows(name, given["X"]))


def _require_rows(name: str, X: DTensor) -> None:
    from torch.distributed.tensor import Replicate, Shard

    if X.device_mesh.ndim != 1:
        raise ValueError(
            f"{name}: X must be on a mesh of one dimension; write X on a part of it, mesh['name']. "
            f"Received {X.device_mesh}"
        )
    if X.placements[0] not in (Shard(0), Replicate()):
        raise ValueError(
            f"{name}: X must be split by rows or replicated; write "
            f"X.redistribute(placements=[Shard(0)]). Received {X.placements[0]}"
        )


def _split(whole: Any, X: DTensor) -> DTensor:
    from torch.distributed.tensor import DTensor, Replicate

    made = DTensor.from_local(whole, X.device_mesh, [Replicate()], run_check=False)
    return made.redistribute(X.device_mesh, X.placements)


def answered(model: Any, method: Callable[..., Any], X: DTensor, rest: dict[str, Any]) -> Any:
    """A method's answers for the rows of this rank, by its own model; as DTensors split as X is.

    An error of one rank is raised on all of them.
    """
    import torch

    from mercer._torch import agreement

    name = f"{type(model).__name__}.{method.__name__}"
    found: list[Any] = []

    def answer() -> None:
        _require_rows(name, X)
        own = X.detach().to_local()
        rows = own.shape[0]
        made = method(model, own if rows else own.new_ones((1, *own.shape[1:])), **rest)
        parts = made if isinstance(made, (tuple, list)) else [made]
        if not all(isinstance(part, torch.Tensor) for part in parts):
            raise NotImplementedError(
                f"{name}: labels must be numbers for DTensors; write X.full_tensor(). "
                f"Received {parts[0].dtype}"
            )
        wrapped = [_joined(part[:rows], X) for part in parts]
        found.append(type(made)(wrapped) if isinstance(made, (tuple, list)) else wrapped[0])

    facts = [name, tuple(X.shape), X.dtype, X.placements, sorted(rest)]
    agreement.compare(name, X.device_mesh, "; ".join(map(str, facts)), answer)
    return found[0]


def _joined(rows: Any, X: DTensor) -> DTensor:
    import torch
    from torch.distributed.tensor import DTensor

    shape = torch.Size((X.shape[0], *rows.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        rows.contiguous(), X.device_mesh, X.placements, run_check=False, shape=shape, stride=stride
    )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """What this rank computes by itself inside a fit."""
    token = _team.set(None)
    try:
        yield
    finally:
        _team.reset(token)
