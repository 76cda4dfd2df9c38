r"""
Densities, and the class of a wine
==================================

A kernel density estimate puts a bump at each of :math:`n` points,

.. math:: p(t) = \frac{1}{n h^d} \sum_i k\!\left(\frac{t - x_i}{h}\right) ,

and evaluates the mean of all bumps: a product of a kernel matrix with a vector of ones. A density
of each class gives a classifier by Bayes' rule, :math:`P(c \mid t) \propto P(c)\, p_c(t)`.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import KernelDensity
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

wine = load_wine()
chosen = [wine.feature_names.index(name) for name in ("flavanoids", "color_intensity")]
x, kinds = scale(wine.data[:, chosen]), wine.target

# %%
# There is a density for each of the three kinds; Silverman's rule picks the bandwidths. Every other
# wine is held out.

train = np.arange(len(x)) % 2 == 0
densities = [
    KernelDensity(kernel="gaussian", bandwidth="silverman").fit(x[train & (kinds == kind)])
    for kind in range(3)
]
prior = np.log(np.bincount(kinds[train]) / train.sum())


def log_joint(points):
    return prior + np.column_stack([density.score_samples(points) for density in densities])


accuracy = np.mean(log_joint(x[~train]).argmax(1) == kinds[~train])
print(f"{accuracy:.1%} of the wines that were held out are told by two measurements")
assert accuracy > 0.85

# %%
# A density integrates to one. The sum over a grid, times the area of a cell, says so.

ticks = np.linspace(-4, 5, 181)
grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
logs = log_joint(grid)
mass = np.exp(logs).sum() * (ticks[1] - ticks[0]) ** 2
print(f"the densities, each times its prior, integrate to {mass:.4f}")
assert abs(mass - 1) < 0.01

# %%
# The contours enclose half and nine tenths of each class: the sets of highest density, whose levels
# are quantiles of the density at points drawn from it.

figure, axes = plt.subplots(figsize=(7, 5.4), layout="constrained")
colors = ("tab:orange", "teal", "tab:purple")
for kind, (density, color) in enumerate(zip(densities, colors, strict=True)):
    drawn = density.score_samples(density.sample(2000, random_state=0))
    levels = np.quantile(drawn, (0.1, 0.5))
    surface = density.score_samples(grid).reshape(181, 181)
    axes.contour(ticks, ticks, surface, levels, colors=color, linestyles="solid")
    axes.contourf(ticks, ticks, surface, [*levels, surface.max()], colors=color, alpha=0.15)
    for held, marker in ((train, "o"), (~train, "x")):
        axes.plot(*x[held & (kinds == kind)].T, marker, color=color, ms=4)
axes.set(xlabel="flavanoids, standardised", ylabel="intensity of the colour, standardised")
axes.set_title("three kinds of wine: 50 % and 90 % regions; crosses are held out", fontsize=10)
axes.set(xlim=(-2.5, 3), ylim=(-2.5, 4))
plt.show()
