"""Fits of Gaussian processes whose first steps are in float32."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

import mercer as mc
from mercer.models import GaussianProcessRegressor, _gp_draft, _gp_exact, _gp_parameters
from mercer.models._arrays import Space

BOUNDS = np.log([[1e-3, 1e3]] * 4)
START = np.log([1.0, 1.0, 1.0, 0.1])


def data(n=500, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.sin(x @ [2.0, 1.0]) + noise * rng.normal(size=n)


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, theta):
        self.calls += 1
        return self.function(theta)

    def __getattr__(self, name):
        return getattr(self.function, name)


def test_a_fit_ends_in_float64_after_fewer_of_its_evaluations():
    x, y = data()
    given = _gp_exact.problem(Space(), mc.gauss(bandwidth=1.0), x, y)
    likelihood = _gp_exact.ExactLikelihood(given)
    exact, draft = Counted(likelihood), Counted(_gp_draft.draft_of(likelihood))
    alone = _gp_parameters.lbfgs(exact, START, BOUNDS, 200)
    calls, exact.calls = exact.calls, 0
    found = _gp_parameters.lbfgs(exact, START, BOUNDS, 200, draft)
    assert exact.calls < calls - 2
    assert draft.calls > 2
    assert found.value == pytest.approx(alone.value, abs=1e-5)
    assert found.value == exact(found.theta)[0]
    inside = (found.theta > BOUNDS[:, 0]) & (found.theta < BOUNDS[:, 1])
    assert abs(exact(found.theta)[1][inside]).max() < 0.05


def test_a_model_uses_drafts(monkeypatch):
    x, y = data(n=_gp_draft.LEAST)
    options = {"kernel": "gauss", "random_state": 0}
    model, calls = GaussianProcessRegressor(**options), []
    call = _gp_draft.Draft.__call__
    monkeypatch.setattr(
        _gp_draft.Draft, "__call__", lambda self, theta: (calls.append(1), call(self, theta))[1]
    )  # fmt: skip
    model.fit(x, y)
    assert calls
    monkeypatch.setattr(_gp_draft, "LEAST", len(x) + 1)
    plain = GaussianProcessRegressor(**options).fit(x, y)
    best = plain.log_marginal_likelihood_value_
    assert model.log_marginal_likelihood_value_ == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("noise", [0.1, 1e-3])
def test_rounding_bounds_what_float32_leaves(noise):
    x, y = data(noise=0.05)
    x = x + np.array([0.0, 30.0])
    given = _gp_exact.problem(Space(), mc.gauss(bandwidth=1.0), x, y)
    exact = _gp_exact.ExactLikelihood(given)
    draft = _gp_draft.draft_of(exact)
    theta = np.log([1.0, 0.7, 0.7, noise])
    off = abs(draft(theta)[0] - exact(theta)[0])
    assert 0 < off < draft.rounding(theta) < 1e4 * off


class Bowl:
    """-|theta|^2, as an objective or as a draft with some rounding."""

    def __init__(self, error=0.0, rounding=0.0, is_finite=True):
        self.error, self.size, self.is_finite, self.calls = error, rounding, is_finite, 0

    def __call__(self, theta):
        self.calls += 1
        value = -float(theta @ theta) + self.error
        return (value if self.is_finite else -np.inf), -2 * theta

    def exact(self, theta):
        return -float(theta @ theta)

    def rounding(self, theta):
        return self.size


@pytest.mark.parametrize(
    "draft",
    [
        Bowl(error=0.5),  # never gives way, and promises too much
        Bowl(error=-0.5, rounding=1e-3),
        Bowl(error=0.5, rounding=0.9),
        Bowl(is_finite=False),
        Bowl(rounding=10.0),  # never asked
        Bowl(rounding=np.nan),
    ],
)
def test_no_draft_misleads(draft):
    exact, start = Bowl(), np.array([3.0, -2.0, 1.0])
    bounds = np.array([[-9.0, 9.0], [-9.0, -1.0], [1.0, 1.0]])
    found = _gp_parameters.lbfgs(exact, start, bounds, 200, draft)
    np.testing.assert_allclose(found.theta, [0, -1, 1], atol=1e-4)
    assert found.value == exact(found.theta)[0]
    assert found.converged
    assert (draft.calls > 0) == (draft.size < 1)


def test_a_value_is_exact_where_iterations_end_among_drafts():
    exact, start = Bowl(), np.array([3.0, -2.0])
    found = _gp_parameters.lbfgs(exact, start, np.array([[-9.0, 9.0]] * 2), 1, Bowl(error=0.5))
    assert found.value == exact(found.theta)[0] > exact(start)[0]
    assert found.n_iter == 1
    assert not found.converged
