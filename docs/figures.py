"""Draws the figures of the guide: ``python docs/figures.py``. Needs matplotlib."""

from __future__ import annotations

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mercer as mc
import numpy as np

OUT = pathlib.Path(__file__).parent / "_static" / "figures"
MEASURED = OUT / "linear_algebra.json"  # rows of python -m mercer.benchmarks on an H200
INK = "#1e293b"
COLORS = ("#c2410c", "#0f766e", "#4338ca", "#a16207", "#64748b")

plt.rcParams.update(
    {
        "svg.hashsalt": "mercer",  # the same file from the same data
        "svg.fonttype": "path",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
    }
)


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(OUT / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def grid(reach: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ticks along an axis, and the points [count^2, 2] of a square grid."""
    ticks = np.linspace(-reach, reach, count)
    return ticks, np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)


def norms() -> None:
    """Unit circles of five norms."""
    ticks, points = grid(1.35, 201)
    figure, axes = plt.subplots(figsize=(4.6, 4.4))
    for p, color in zip((0.5, 1, 1.3, 2, np.inf), COLORS, strict=True):
        distance = np.asarray(mc.cdist(points, np.zeros((1, 2)), p=p)).reshape(201, 201)
        axes.contour(ticks, ticks, distance, levels=[1.0], colors=[color], linewidths=1.8)
        name = "p = ∞" if np.isinf(p) else f"p = {p:g}"
        axes.plot([], [], color=color, lw=1.8, label=name)
    axes.set_aspect("equal")
    axes.set_xlabel("feature 1")
    axes.set_ylabel("feature 2")
    axes.set_title("Points at distance 1 from the origin", fontsize=11)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, "norms")


def kernels() -> None:
    """Kernels as functions of the distance."""
    distance = np.linspace(0, 4, 401)[:, None]
    figure, axes = plt.subplots(figsize=(5.6, 3.4))
    rows = {
        "laplace": mc.laplace(bandwidth=1),
        "matern32": mc.matern32(bandwidth=1),
        "matern52": mc.matern52(bandwidth=1),
        "gauss": mc.gauss(bandwidth=1),
        "cauchy": mc.cauchy(bandwidth=1),
    }
    for (name, kernel), color in zip(rows.items(), COLORS, strict=True):
        axes.plot(
            distance, mc.pairwise(kernel, distance, np.zeros((1, 1))), color=color, label=name
        )
    axes.set_xlim(0, 4)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("distance of the points, in bandwidths")
    axes.set_ylabel("kernel")
    axes.legend(frameon=False)
    save(figure, "kernels")


def memory() -> None:
    """Memory of a kernel matrix and of a matrix-free product."""
    points = np.logspace(3, 6, 50)
    features = 64
    figure, axes = plt.subplots(figsize=(5.6, 3.4))
    axes.loglog(points, 4 * points**2 / 1e9, color=COLORS[4], label="kernel matrix, then product")
    axes.loglog(points, 4 * points * (4 * features + 2) / 1e9, color=COLORS[0],
                label="kernel_product: points, packed copies")  # fmt: skip
    axes.axhline(16, color=INK, lw=0.8, ls=":")
    axes.annotate("16 GB", (1e3, 16), (2, 3), textcoords="offset points", fontsize=9)
    axes.set_xlabel(f"number of points M = N, {features} features, float32")
    axes.set_ylabel("memory in GB")
    axes.legend(frameon=False)
    save(figure, "memory")


def gradient() -> None:
    """A sum of Gauss kernels and its gradient field."""
    rng = np.random.default_rng(3)
    centres, weights = rng.uniform(-1.6, 1.6, (6, 2)), np.ones(6)
    kernel = mc.gauss(bandwidth=0.6)
    ticks, points = grid(2.2, 81)
    density = np.asarray(mc.kernel_product(kernel, points, centres, weights)).reshape(81, 81)
    _, places = grid(2.1, 15)
    field = np.asarray(mc.kernel_gradient(kernel, places, centres, weights))
    figure, axes = plt.subplots(figsize=(4.8, 4.4))
    axes.contourf(ticks, ticks, density, levels=12, cmap="Oranges", alpha=0.8)
    axes.quiver(*places.T, *field.T, color=INK, width=0.003)
    axes.plot(*centres.T, "o", color=COLORS[2], ms=5, label="points z")
    axes.set_aspect("equal")
    axes.set_xlabel("feature 1")
    axes.set_ylabel("feature 2")
    axes.set_title("kernel_product (colour) and kernel_gradient (arrows)", fontsize=10)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, "gradient")


def kronecker() -> None:
    """A Gaussian process on the grid of an image's pixels."""
    from sklearn.datasets import load_sample_image

    picture = load_sample_image("flower.jpg")[100:340, 180:520].mean(axis=2) / 255
    noise = 0.1
    noisy = picture + noise * np.random.default_rng(0).normal(size=picture.shape)
    factors = [
        0.22 * mc.kernel_matrix("matern32", np.arange(n, dtype=float)[:, None], bandwidth=8.0)
        for n in picture.shape
    ]
    weights = mc.kron.solve(factors, (noisy - noisy.mean()).ravel(), shift=noise**2)
    mean = noisy.mean() + mc.kron.kron_matmul(factors, weights).reshape(picture.shape)
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.3))
    panels = {"photograph": picture, "with noise": noisy, "mean of the Gaussian process": mean}
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        axis.imshow(values, cmap="gray", vmin=0, vmax=1)
        axis.set_title(title, fontsize=10)
        axis.set_axis_off()
    save(figure, "kronecker")


def one_fit() -> None:
    """Who multiplies which block of a kernel matrix, in four ways of one fit."""
    figure, axes = plt.subplots(1, 4, figsize=(9.2, 2.7))
    ways = {
        "one process": (1, 1, lambda i, j: (0, "all threads")),
        "two ranks": (2, 1, lambda i, j: (i, f"rank {i}")),
        "chunks, on three workers": (4, 4, lambda i, j: ((i + j) % 3, "abc"[(i + j) % 3])),
        "streamed through a GPU": (4, 3, lambda i, j: (1, f"{3 * i + j + 1}")),
    }
    for axis, (title, (rows, columns, owner)) in zip(axes, ways.items(), strict=True):
        for i in range(rows):
            for j in range(columns):
                color, text = owner(i, j)
                corner, width, height = (j / columns, 1 - (i + 1) / rows), 1 / columns, 1 / rows
                block = plt.Rectangle(corner, width, height, fc=COLORS[color], ec="white", lw=1.5)
                axis.add_patch(block)
                axis.text(corner[0] + width / 2, corner[1] + height / 2, text, ha="center",
                          va="center", color="white", fontsize=9)  # fmt: skip
        axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
        axis.spines[:].set_visible(False)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("points z", fontsize=9)
    axes[0].set_ylabel("points x", fontsize=9)
    save(figure, "one_fit")


def linear_algebra() -> None:
    """Backward error against time, Mercer and torch.linalg, as they were measured."""
    kinds = {"top 64 gauss": "o", "cholesky": "s", "solve_lu": "^", "solve_cholesky": "D"}
    figure, axes = plt.subplots(figsize=(6.4, 4.0))
    for line in json.loads(MEASURED.read_text()):
        kind = max((k for k in kinds if line["row"].startswith(k)), key=len, default=None)
        if kind is None or line["peer_ms"] is None:
            continue
        times, errors = (line["ms"], line["peer_ms"]), (line["error"], line["peer_error"])
        axes.loglog(times, errors, color=COLORS[4], lw=0.8, zorder=1)
        for time, error, color in zip(times, errors, COLORS, strict=False):
            axes.loglog(time, error, kinds[kind], color=color, ms=6)
        size = line["row"].removeprefix(kind).strip()
        axes.annotate(size, (times[0], errors[0]), (-4, -11), textcoords="offset points",
                      fontsize=7)  # fmt: skip
    for name, color in zip(("mercer.linalg", "torch.linalg"), COLORS, strict=False):
        axes.plot([], [], "o", color=color, label=name)
    for kind, marker in kinds.items():
        axes.plot(
            [], [], marker, color=INK, mfc="none", label=kind.replace(" gauss", " eigenpairs")
        )
    axes.set_xlabel("time in ms, one H200, float32")
    axes.set_ylabel("backward error")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, "linear_algebra")


def models_others() -> None:
    """A density of wines, an embedding of digits, and a test of two samples."""
    from mercer.models import MMD, KernelDensity, SpectralEmbedding
    from sklearn.datasets import load_diabetes, load_digits, load_wine

    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.2))
    wines = load_wine().data[:, [0, 9]]
    wines = (wines - wines.mean(0)) / wines.std(0)
    ticks, places = grid(3.7, 121)
    logs = KernelDensity(bandwidth="silverman", kernel="epanechnikov").fit(wines)
    surface = np.exp(logs.score_samples(places)).reshape(121, 121)
    axes[0].contourf(ticks, ticks, surface, levels=12, cmap="Oranges")
    axes[0].plot(*wines.T, ".", color=INK, ms=3)
    axes[0].set(xlabel="alcohol", ylabel="intensity of colour", title="KernelDensity")

    digits, labels = load_digits(n_class=6, return_X_y=True)
    embedded = SpectralEmbedding(2, n_neighbors=60, random_state=0).fit_transform(digits)
    points = axes[1].scatter(*embedded.T, c=labels, cmap=plt.get_cmap("tab10", 6), s=4,
                             vmin=-0.5, vmax=5.5)  # fmt: skip
    axes[1].set(xticks=[], yticks=[], title="SpectralEmbedding of digits")
    figure.colorbar(points, ax=axes[1], ticks=range(6))

    people, _ = load_diabetes(return_X_y=True)
    sexes, rest = people[:, 1] > 0, people[:, [0, 2, 3]]
    found = MMD(random_state=0).test(rest[sexes], rest[~sexes])
    axes[2].hist(1e3 * found.null, bins=40, color=COLORS[4], label="permutations")
    axes[2].axvline(1e3 * found.statistic, color=COLORS[0],
                    label=f"men and women, p = {found.p_value:.3f}")  # fmt: skip
    axes[2].set(xlabel="1000 MMD² of the diabetes data", yticks=[], title="MMD")
    axes[2].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.title.set_fontsize(10)
    save(figure, "models_others")


def learned_metric() -> None:
    """Metrics of feature machines: diabetes with columns of noise, and pixels of digits."""
    from mercer.models import RFMClassifier, RFMRegressor
    from sklearn.datasets import load_diabetes, load_digits
    from sklearn.preprocessing import StandardScaler

    data = load_diabetes()
    noise = np.random.default_rng(0).normal(size=(len(data.data), 30))
    x = np.hstack([StandardScaler().fit_transform(data.data), noise])
    y = (data.target - data.target.mean()) / data.target.std()
    metric = RFMRegressor(alpha=10.0, random_state=0).fit(x[:330], y[:330]).metric_[:20, :20]
    digits, kind = load_digits(return_X_y=True)
    weights = RFMClassifier(diag=True, n_rounds=2, random_state=0).fit(digits / 16, kind)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.8))
    top = abs(metric).max()
    shown = left.imshow(metric, cmap="RdBu_r", vmin=-top, vmax=top)
    names = [*data.feature_names, *["noise"] * 10]
    left.set_xticks(range(20), names, rotation=90, fontsize=7)
    left.set_yticks(range(20), names, fontsize=7)
    figure.colorbar(shown, ax=left, shrink=0.85)
    pixels = right.imshow(weights.feature_importances_.reshape(8, 8), cmap="viridis")
    right.set_xticks([])
    right.set_yticks([])
    figure.colorbar(pixels, ax=right, shrink=0.85)
    for axes, title in ((left, "Diabetes and noise"), (right, "Digits, weights of pixels")):
        axes.set_title(title, fontsize=11)
        axes.spines[:].set_visible(False)
    save(figure, "learned_metric")


def logistic() -> None:
    """Probabilities of three kinds of iris over the lengths and widths of petals."""
    from mercer.models import KernelLogisticRegression
    from sklearn.datasets import load_iris

    data = load_iris()
    x, y = data.data[:, 2:], data.target
    centre, width = x.mean(0), x.std(0)
    model = KernelLogisticRegression("gauss", bandwidth=1.0, C=3.0).fit((x - centre) / width, y)
    ticks = [
        np.linspace(low - 0.4, high + 0.4, 241)
        for low, high in zip(x.min(0), x.max(0), strict=True)
    ]
    points = np.stack(np.meshgrid(*ticks), axis=-1).reshape(-1, 2)
    p = model.predict_proba((points - centre) / width).reshape(241, 241, 3)
    figure, axes = plt.subplots(figsize=(5.6, 3.8))
    for kind, color in enumerate(COLORS[:3]):
        own = np.where(p.argmax(-1) == kind, p[..., kind], np.nan)
        fill = matplotlib.colors.LinearSegmentedColormap.from_list("", ["white", color])
        axes.pcolormesh(*ticks, own, cmap=fill, vmin=0.3, vmax=1.6, rasterized=True)
        axes.contour(*ticks, p[..., kind], levels=[0.5, 0.7, 0.9], colors=[color], linewidths=0.8)
        axes.plot(*x[y == kind].T, "o", ms=4, color=color, mec="white", mew=0.5,
                  label=str(data.target_names[kind]))  # fmt: skip
    axes.set_xlabel("length of the petal in cm")
    axes.set_ylabel("width of the petal in cm")
    axes.legend(frameon=False, loc="upper left")
    save(figure, "logistic")


def gp_bands() -> None:
    """A Gaussian process of real data, with bands of two deviations."""
    from mercer.models import GaussianProcessRegressor
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    x, y = table.data[:, [2]], table.target
    model = GaussianProcessRegressor("gauss").fit(x, y)
    grid = np.linspace(17, 43, 201)[:, None]
    mean, std = model.predict(grid, return_std=True)
    spread = model.predict(grid, return_std=True, include_noise=True)[1]
    figure, axes = plt.subplots(figsize=(5.6, 3.4))
    for width, opacity, name in ((spread, 0.12, "new patients"), (std, 0.35, "the function")):
        low, high = mean - 2 * width, mean + 2 * width
        axes.fill_between(grid[:, 0], low, high, color=COLORS[1], alpha=opacity, lw=0, label=name)
    axes.plot(grid, mean, color=COLORS[1], lw=1.8, label="mean")
    axes.plot(x, y, ".", color=INK, ms=3.5, label="442 patients")
    axes.set_xlim(17, 43)
    axes.set_xlabel("body mass index")
    axes.set_ylabel("progression of diabetes")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, "gp_bands")


def ridge_path() -> None:
    """Left-out errors of ridges and bandwidths on the diabetes data, and errors on a test set."""
    from mercer.models import KernelRidge, KernelRidgeCV
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import StandardScaler

    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x), (y - y.mean()) / y.std()
    options = {"alphas": np.logspace(-3, 3, 25), "bandwidths": np.logspace(-1, 1, 21)}
    model = KernelRidgeCV(**options).fit(x[:300], y[:300])
    quick = KernelRidgeCV(select="gcv", random_state=0, **options).fit(x[:300], y[:300])
    alphas, widths = options["alphas"], model.cv_results_["bandwidths"]
    scores, best = model.cv_results_["scores"], widths.index(model.bandwidth_)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4))
    levels = np.geomspace(scores.min(), 1.2, 14)
    surface = left.contourf(alphas, widths, scores, levels=levels, cmap="viridis", extend="max")
    left.plot(model.alpha_, model.bandwidth_, "o", color="white", mec=INK)
    left.set(xscale="log", yscale="log", xlabel="alpha", ylabel="bandwidth")
    figure.colorbar(surface, ax=left, label="left-out mean squared error", format="%.2f")
    fits = [KernelRidge(bandwidth=model.bandwidth_, alpha=a).fit(x[:300], y[:300]) for a in alphas]
    test = [np.mean((fit.predict(x[300:]) - y[300:]) ** 2) for fit in fits]
    curves = {
        "left out, exactly": scores[best],
        "generalised, 16 probes": quick.cv_results_["scores"][best],
        "142 other patients": test,
    }
    for (label, curve), color, style in zip(curves.items(), COLORS, ("-", "--", ":"), strict=False):
        right.semilogx(alphas, curve, style, color=color, label=label)
    right.set(xlabel=f"alpha, at a bandwidth of {model.bandwidth_:.1f}",
              ylabel="mean squared error", ylim=(0.4, 1.2))  # fmt: skip
    right.legend(frameon=False)
    save(figure, "ridge_path")


def digits() -> None:
    """The map of `make demo`, 900 pixels wide and in 48 colours."""
    from PIL import Image

    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
    import demo

    path, data = OUT / "digits.png", demo.load()
    demo.picture_of_digits(data, demo.classify(data), demo.layout(), path)
    picture = Image.open(path).convert("RGB")
    small = picture.resize((900, picture.height * 900 // picture.width), Image.Resampling.LANCZOS)
    small.quantize(48, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for draw in (
        norms,
        kernels,
        memory,
        gradient,
        kronecker,
        one_fit,
        linear_algebra,
        learned_metric,
        logistic,
        models_others,
        gp_bands,
        ridge_path,
        digits,
    ):
        draw()
    print(f"figures in {OUT}")


if __name__ == "__main__":
    main()
