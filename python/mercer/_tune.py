"""mercer.tune, and the same for points made up here, which the command line calls."""

from __future__ import annotations

from typing import Any, NamedTuple

from mercer import _mercer
from mercer._types import ArrayT, FormulaLike, Parameter


class Tuned(NamedTuple):
    """The tile or plan in use from now on, the model's, and all that were measured, in ms."""

    chosen: str
    model: str
    tiles: list[tuple[str, float]]

    def __str__(self) -> str:
        """A line a tile, the fastest first; ``*`` marks the chosen one."""
        lines = []
        for text, ms in self.tiles:
            mark = "*" if text == self.chosen else " "
            lines.append(f"{mark} {ms:10.4f} ms  {text}{' (model)' * (text == self.model)}")
        return "\n".join(lines)


def tune(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None = None,
    *,
    verb: str = "pairwise",
    v: ArrayT | None = None,
    reduce: str | None = None,
    out: ArrayT | None = None,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    progress: bool = False,
    **params: Parameter,
) -> Tuned:
    """Measures which tile computes this call fastest on its CUDA device, and keeps the answer.

    Calls of this formula, these dtypes and sizes of this class use the fastest from then on, in
    this process and, by the cache on disk, in later ones. Only tiles whose results are the same bit
    by bit take part. Numbers that the formula takes as parameters make no difference, but for those
    in exponents.

    - verb: "pairwise", and for the same kernel "kernel_matrix", "cdist" and "knn";
      "kernel_product", with v; "kernel_reduce", with reduce.
    - out: an array to write into, of the dtype and layout that the calls' outputs have; scratch
      memory of the computing dtype when None. The other arguments are those of the verb.

    Takes seconds, most of them for the compiler. Raises NotImplementedError on the CPU and for
    arrays of JAX, ValueError while a CUDA graph is being captured. A graph captured before keeps
    its kernels.
    """
    return Tuned(
        *_mercer.tune_tiles(f, x, z, verb, v, reduce, out, row, col, w, progress, dict(params))
    )


def _torch_on(device: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise NotImplementedError(
            "tune: PyTorch must be there to make the points (pip install torch). Received none"
        ) from error
    if not torch.cuda.is_available():
        raise NotImplementedError(
            f"tune: PyTorch must see a CUDA device. Received none for {device}"
        )
    return torch


def tune_shape(
    f: FormulaLike,
    shape: tuple[int, int, int],
    dtype: str = "float32",
    device: str = "cuda:0",
    verb: str = "pairwise",
    **params: Parameter,
) -> Tuned:
    """As `tune`, on normally distributed points, made by PyTorch, with one column of v."""
    torch = _torch_on(device)
    m, n, k = shape
    kind = getattr(torch, dtype)
    computed = torch.float64 if dtype in ("float64", "int32") else torch.float32
    generator = torch.Generator(device).manual_seed(1)

    def points(count: int) -> Any:
        if not kind.is_floating_point:
            ends = torch.iinfo(kind)
            return torch.randint(
                ends.min, ends.max + 1, (count, k), generator=generator, device=device, dtype=kind
            )
        normal = torch.randn(count, k, generator=generator, device=device, dtype=computed)
        return normal.to(kind)

    v = torch.ones(n, device=device, dtype=computed) if verb == "kernel_product" else None
    options: dict[str, Any] = params
    return tune(f, points(m), points(n), verb=verb, v=v, progress=True, **options)
