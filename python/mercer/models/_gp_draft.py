"""The likelihood in float32 while an optimizer is far from its end: half of the time of float64."""

from __future__ import annotations

import numpy as np

from mercer._libraries import namespace_of
from mercer.models import _gp_parameters
from mercer.models._arrays import host
from mercer.models._gp_exact import ExactLikelihood, self_similarity

#: Points from which on factors take more of the time than calls.
LEAST = 500
#: Rounding of a likelihood, in units of float32's times the condition: one to four were measured.
ROUNDINGS = 4


class Draft:
    """ExactLikelihood in float32, and how far it may be off."""

    def __init__(self, whole: ExactLikelihood) -> None:
        self.whole, self.data = whole, whole.data
        data, space = self.data, self.data.space.of("float32")
        x, y, scale = map(space.array, (data.x, data.y, data.noise_scale))
        self.likelihood = ExactLikelihood(
            data._replace(space=space, x=x, y=y, noise_scale=scale)
        )  # fmt: skip
        self.tops = host(namespace_of(data.x).amax(abs(data.x), 0))
        self.quietest = float(data.noise_scale.min())

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        return self.likelihood(theta)

    def exact(self, theta: np.ndarray) -> float:
        return self.whole(theta, gradient=False)[0]

    def rounding(self, theta: np.ndarray) -> float:
        """The value's rounding, about: the condition times that of the factor, or of the points."""
        data, (amplitude, lengthscale, noise) = self.data, _gp_parameters.values(theta)
        scaled = data.x / data.space.array(lengthscale)
        top = amplitude * float(self_similarity(data.f, scaled).max())
        n, reach = len(scaled), float((self.tops / lengthscale).max())
        terms = ROUNDINGS * max(n, n**0.5 * reach)
        return 0.5 * float(np.finfo(np.float32).eps) * terms * top / (noise * self.quietest)


def draft_of(whole: ExactLikelihood) -> Draft | None:
    """None where float32 would not save time."""
    data = whole.data
    is_wide = data.space.dtype == "float64" and not data.space.on_device
    return Draft(whole) if is_wide and data.x.shape[0] >= LEAST else None
