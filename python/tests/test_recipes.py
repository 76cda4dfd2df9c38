"""The recipes of the guide, each where its package is installed, against what they stand for."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import numpy as np
import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/recipes.md"
#: The title of a recipe and the package it needs.
PACKAGES = {"UMAP": "umap", "HDBSCAN": "hdbscan", "POT": "ot", "geomloss": "geomloss",
            "FAISS": "faiss", "BoTorch": "botorch"}  # fmt: skip


def section(title: str) -> str:
    """The code under a heading; under none, that before the first."""
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.M)
    text = dict(zip(["", *parts[1::2]], parts[::2], strict=True))[title]
    return "".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))


def run(title: str) -> dict:
    """What the recipe leaves; a skip without its package."""
    if importlib.util.find_spec(PACKAGES[title]) is None:
        pytest.skip(f"{PACKAGES[title]} is not installed")
    names: dict = {}
    for code in (section(""), section(title)):
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_every_recipe_has_a_test():
    titles = re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.M)
    assert titles == list(PACKAGES)
    assert all(
        f"def test_{title.lower()}" in pathlib.Path(__file__).read_text() for title in titles
    )


def canberra(names):
    from scipy.spatial.distance import cdist

    points = names["points"].astype(np.float64)
    return cdist(points, points, "canberra")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_umap():
    names = run("UMAP")
    exact = np.sort(canberra(names), axis=1)[:, :15]
    np.testing.assert_allclose(names["distances"], exact, rtol=1e-4, atol=1e-6)
    embedding, groups = names["embedding"], names["groups"]
    means = np.stack([embedding[groups == i].mean(0) for i in range(3)])
    nearest = ((embedding[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == groups).mean() > 0.95


@pytest.mark.filterwarnings("ignore")
def test_hdbscan():
    names = run("HDBSCAN")
    exact = canberra(names)
    np.testing.assert_allclose(names["matrix"], exact, rtol=1e-12, atol=1e-14)
    same = names["hdbscan"].HDBSCAN(metric="precomputed", min_cluster_size=10).fit(exact)
    assert np.array_equal(names["labels"], same.labels_)
    assert len(set(names["labels"]) - {-1}) == 3


def test_pot():
    names = run("POT")
    ot, a, b, epsilon = (names[name] for name in ("ot", "a", "b", "epsilon"))
    cost = (abs(a[:, None] - b) ** 1.3).sum(-1) ** (1 / 1.3)
    weights = np.full(60, 1 / 60), np.full(90, 1 / 90)
    assert names["least"] == pytest.approx(ot.emd2(*weights, cost), rel=1e-10)
    plan = ot.sinkhorn(*weights, cost, epsilon, method="sinkhorn_log", numItermax=200)
    ours = np.exp((names["f"][:, None] + names["g"] - cost) / epsilon) / 5400
    np.testing.assert_allclose(ours, plan, atol=1e-6)
    entropy = epsilon * np.sum(ours * np.log(ours * 5400))
    assert names["dual"] == pytest.approx(np.sum(ours * cost) + entropy, rel=1e-4)


def test_geomloss():
    names = run("geomloss")
    torch, geomloss = names["torch"], names["geomloss"]
    plain = geomloss.SamplesLoss(
        "sinkhorn", p=1, blur=0.1, cost=lambda x, y: torch.cdist(x, y, 1.3), backend="tensorized"
    )
    x = names["moving"].detach().clone().double().requires_grad_()
    plain(x, torch.tensor(names["points"][60:]).double()).backward()
    found = names["moving"].grad.double()
    assert torch.linalg.norm(found - x.grad) < 1e-3 * torch.linalg.norm(x.grad)


def test_faiss():
    names = run("FAISS")
    from scipy.spatial.distance import cdist

    exact = cdist(names["queries"].astype("d"), names["points"].astype("d"), "canberra")
    offered = np.take_along_axis(exact, names["candidates"], 1)
    chosen = np.take_along_axis(exact, names["best"], 1)
    np.testing.assert_allclose(chosen, np.sort(offered, axis=1)[:, :5], rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_botorch():
    names = run("BoTorch")
    torch, gpytorch, model = names["torch"], names["gpytorch"], names["model"]
    assert (names["candidate"] - 0.6).abs().max() < 0.2
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2))
    botorch = names["botorch"].models
    plain = botorch.SingleTaskGP(names["tried"], names["gain"], covar_module=kernel)
    plain.load_state_dict(model.state_dict())
    x = torch.rand(7, 2, dtype=torch.float64)
    ours, theirs = model.posterior(x), plain.posterior(x)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-4, atol=1e-6)
