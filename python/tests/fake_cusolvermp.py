"""cuSOLVERMp and NCCL for machines without GPUs: threads that meet, and LAPACK's results.

It looks at what the original demands: every GPU in every call, arguments that agree, descriptors
that fit the shard, scratch memory of the size that was asked for, square blocks and powers of two.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading

import numpy as np
import scipy.linalg

REAL = {0: np.float32, 1: np.float64}
DEVICE_BYTES, HOST_BYTES = 96, 32
INTERNAL_ERROR = 7


class Team:
    """The threads of one communicator."""

    def __init__(self, size):
        self.size, self.barrier = size, threading.Barrier(size, timeout=20)
        self.items, self.result = {}, None

    def meet(self, rank, item, work):
        """work(items of all ranks, by rank) once; every thread gets its result."""
        self.items[rank] = item
        if self.barrier.wait() == 0:
            self.result = work([self.items[rank] for rank in range(self.size)])
        self.barrier.wait()
        result = self.result
        self.barrier.wait()
        return result


class FakeStream:
    handle = 7

    def __init__(self, device):
        pass

    def work(self):
        return contextlib.nullcontext()


class Fake:
    """Both libraries; ``live`` counts handles, grids, descriptors and communicators."""

    def __init__(self, version=901, nccl=22902):
        self.version, self.nccl_version = version, nccl
        self.objects, self.numbers, self.live = {}, itertools.count(1), 0
        self.calls, self.spoil = [], None
        self.statuses = {}
        for name in dir(self):
            if name.startswith(("cusolverMp_", "nccl_")):
                prefix, rest = name.split("_", 1)
                method = getattr(self, name)
                setattr(self, prefix + rest, lambda *args, m=method: m(*args) or 0)
        for name in ("Potrf", "Potrs", "Getrf", "Getrs", "Syevd"):
            routine = lambda *args, n=name: self.routine(n, *args)  # noqa: E731
            query = lambda *args, n=name: self.query(n, *args)  # noqa: E731
            setattr(self, f"cusolverMp{name}", routine)
            setattr(self, f"cusolverMp{name}_bufferSize", query)

    def make(self, there, item):
        number = next(self.numbers)
        self.objects[number] = item
        self.live += 1
        there.value = number

    def drop(self, number):
        del self.objects[value(number)]
        self.live -= 1

    def nccl_GetVersion(self, there):
        there._obj.value = self.nccl_version

    def nccl_CommInitAll(self, comms, count, devices):
        team = Team(count)
        for rank in range(count):
            there = ctypes.c_void_p()
            self.make(there, (team, rank))
            comms[rank] = there.value

    def nccl_CommDestroy(self, comm):
        self.drop(comm)

    def cusolverMp_Create(self, there, device, stream):
        assert stream, "the default stream is refused"
        self.make(there._obj, {})

    def cusolverMp_Destroy(self, handle):
        self.drop(handle)

    def cusolverMp_GetVersion(self, handle, there):
        there._obj.value = self.version

    def cusolverMp_CreateDeviceGrid(self, handle, there, comm, p, q, by_rows):
        team, rank = self.objects[value(comm)]
        assert by_rows == 1
        assert p * q == team.size
        handle = self.objects[value(handle)]
        handle.update(team=team, rank=rank, shape=(p, q), place=divmod(rank, q))
        self.make(there._obj, handle)

    def cusolverMp_DestroyGrid(self, grid):
        self.drop(grid)

    def cusolverMp_CreateMatrixDesc(self, there, grid, kind, m, n, mb, nb, rsrc, csrc, lead):
        grid = self.objects[value(grid)]
        assert (rsrc, csrc) == (0, 0)
        rows = indices(m, mb, grid["place"][0], grid["shape"][0])
        cols = indices(n, nb, grid["place"][1], grid["shape"][1])
        assert lead >= max(1, len(rows))
        self.make(there._obj, {"kind": REAL[kind], "shape": (m, n), "block": (mb, nb),
                               "rows": rows, "cols": cols, "lead": lead})  # fmt: skip

    def cusolverMp_DestroyMatrixDesc(self, there):
        self.drop(there)

    def query(self, name, handle, *rest):
        device, host = rest[-2:]
        handle = self.objects[value(handle)]
        device._obj.value, host._obj.value = DEVICE_BYTES, HOST_BYTES
        handle["team"].meet(handle["rank"], name, lambda names: same(names))
        return 0

    def routine(self, name, handle, *rest):
        *leading, device, device_bytes, host, host_bytes, info = rest
        assert device
        assert host
        assert (device_bytes, host_bytes) == (DEVICE_BYTES, HOST_BYTES)
        handle = self.objects[value(handle)]
        found = handle["team"].meet(handle["rank"], leading, lambda all: self.compute(name, all))
        memory(info, ctypes.c_int, 1)[0] = found
        return INTERNAL_ERROR if name == "Potrf" and found > 0 else self.statuses.get(name, 0)

    def compute(self, name, arguments):
        self.calls.append(name)
        try:
            return getattr(self, name)(*zip(*arguments, strict=True))
        except AssertionError as error:
            self.calls.append(error)
            return -99

    def whole(self, pointers, descriptors, values=None):
        """The matrix of the shards of all ranks, or values into them."""
        parts = [self.objects[value(there)] for there in descriptors]
        first = parts[0]
        same([(part["shape"], part["block"], part["kind"]) for part in parts])
        result = np.zeros(first["shape"], first["kind"])
        for pointer, part in zip(pointers, parts, strict=True):
            rows, cols = part["rows"], part["cols"]
            kind = {np.float32: ctypes.c_float, np.float64: ctypes.c_double}[part["kind"]]
            shard = memory(pointer, kind, part["lead"] * len(cols))
            shard = shard.reshape(len(cols), part["lead"]).T[: len(rows)]
            if values is None:
                result[np.ix_(rows, cols)] = shard
            else:
                shard[:] = values[np.ix_(rows, cols)]
        return result

    def Potrf(self, lower, n, a, ia, ja, where, kind):
        whole = self.whole(a, where)
        assert whole.shape == (n[0], n[0])
        assert set(lower) == {0}
        factor, info = scipy.linalg.lapack.get_lapack_funcs("potrf", [whole])(whole, lower=1)
        self.whole(a, where, factor)
        return info

    def Potrs(self, lower, n, k, a, ia, ja, where, b, ib, jb, to, kind):
        factor, right = np.tril(self.whole(a, where)), self.whole(b, to)
        assert right.shape == (n[0], k[0])
        self.whole(b, to, np.linalg.solve(factor @ factor.T, right))
        return 0

    def Getrf(self, m, n, a, ia, ja, where, pivots, kind):
        whole = self.whole(a, where)
        factors, _, _ = scipy.linalg.lapack.get_lapack_funcs("getrf", [whole])(whole)
        self.matrices = whole
        self.whole(a, where, factors)
        # The library says nothing of zero pivots: the caller has to look.
        return 0

    def Getrs(self, plain, n, k, a, ia, ja, where, pivots, b, ib, jb, to, kind):
        assert set(plain) == {0}
        self.whole(b, to, np.linalg.solve(self.matrices, self.whole(b, to)))
        return 0

    def Syevd(self, job, lower, n, a, ia, ja, where, w, v, iv, jv, to, kind):
        whole = self.whole(a, where)
        block = self.objects[value(where[0])]["block"]
        assert set(job) == {b"V"}
        assert block[0] == block[1]
        assert block[0] & (block[0] - 1) == 0
        values, vectors = np.linalg.eigh(np.tril(whole) + np.tril(whole, -1).T)
        if self.spoil is not None:
            self.spoil(values, vectors)
        kinds = {np.float32: ctypes.c_float, np.float64: ctypes.c_double}
        for pointer in w:
            memory(pointer, kinds[whole.dtype.type], n[0])[:] = values
        self.whole(v, to, vectors)
        self.whole(a, where, np.full_like(whole, np.nan))
        return 0


def value(there):
    return getattr(there, "value", there)


def memory(pointer, kind, count):
    return np.ctypeslib.as_array((kind * count).from_address(pointer))


def indices(n, block, place, count):
    return np.array([i for i in range(n) if i // block % count == place], int)


def same(items):
    assert all(item == items[0] for item in items), items
