r"""
Stein variational gradient descent
==================================

Particles :math:`x_1 \dots x_n` become samples of a density :math:`p` that is known up to a factor.
Each one moves by

.. math::

    \phi(x_i) = \frac1n \sum_j
    \big( k(x_j, x_i)\, \nabla \log p(x_j) + \nabla_{x_j} k(x_j, x_i) \big) .

The first sum is a product of the kernel matrix with the gradients and pulls towards high density;
the second one pushes particles apart. For a kernel of :math:`x - z` it is minus the gradient of
:math:`\sum_j k(x_j, x_i)` with respect to :math:`x_i`, which ``kernel_gradient`` computes.

The density is a posterior that can be checked on a grid: logistic regression of two kinds of irises
on one measurement, :math:`P(\text{virginica} \mid s) = 1 / (1 + e^{-(a s + b)})`, with normal
priors on :math:`a` and :math:`b`.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from sklearn.datasets import load_iris

iris = load_iris()
length = iris.data[50:, 2] - iris.data[50:, 2].mean()
design = np.column_stack([length, np.ones(100)])
target = iris.target[50:] - 1


def score(points):
    """The gradient of the logarithm of the posterior; the priors have a standard deviation of 5."""
    return (target - 1 / (1 + np.exp(-points @ design.T))) @ design - points / 25


# %%
# The bandwidth is relative to the spread of the particles. AdaGrad sets the length of each
# coordinate's step.

rng = np.random.default_rng(0)
particles = start = rng.normal(loc=(0, 4), size=(200, 2))
ones, squares = np.ones(200), 0.0
kernel = "exp(-sum((x-z)^2)/(2*h^2))"
for _ in range(500):
    other, h = particles.copy(), 0.3 * particles.std()
    pull = mc.kernel_product(kernel, particles, other, score(particles), h=h)
    push = -mc.kernel_gradient(kernel, particles, other, ones, h=h)
    phi = (pull + push) / 200
    squares = squares + phi**2
    particles = particles + 0.5 * phi / np.sqrt(squares + 1e-12)

# %%
# The posterior on a grid has the mean and the standard deviations that the particles should have.

ticks_a, ticks_b = np.linspace(-4, 16, 241), np.linspace(-2, 8, 181)
grid = np.stack(np.meshgrid(ticks_a, ticks_b), axis=-1).reshape(-1, 2)
odds = grid @ design.T
logs = (target * odds - np.logaddexp(0, odds)).sum(1) - np.square(grid).sum(1) / 50
weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
mean = weights @ grid
deviation = np.sqrt(weights @ np.square(grid - mean))
print(f"posterior: mean {mean.round(2)}, standard deviations {deviation.round(2)}")
print(f"particles: mean {particles.mean(0).round(2)}, {particles.std(0).round(2)}")
assert np.all(np.abs(particles.mean(0) - mean) < 0.3 * deviation)
assert np.all(np.abs(particles.std(0) / deviation - 1) < 0.15)

figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
levels = weights.max() * np.linspace(0.02, 1, 12)
axes.contourf(ticks_a, ticks_b, weights.reshape(181, 241), levels, cmap="Oranges")
axes.plot(*start.T, ".", color="lightgray", label="particles at the start")
axes.plot(*particles.T, ".", color="teal", label="after 500 steps")
axes.set(xlabel="slope a", ylabel="offset b", title="posterior density and particles")
axes.legend(frameon=False)
plt.show()
