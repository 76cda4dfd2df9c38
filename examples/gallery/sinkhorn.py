r"""
Optimal transport of colours
============================

Entropic optimal transport between weighted points :math:`(x_i, a_i)` and :math:`(z_j, b_j)` looks
for the plan of least cost :math:`C_{ij} = |x_i - z_j|^2` and enough entropy. Its plan is
:math:`\pi_{ij} = a_i b_j \exp((f_i + g_j - C_{ij}) / \varepsilon)`, and Sinkhorn's algorithm finds
the potentials in turns:

.. math:: f_i = -\varepsilon \log \sum_j b_j \, e^{(g_j - C_{ij}) / \varepsilon} , \qquad
          g_j = -\varepsilon \log \sum_i a_i \, e^{(f_i - C_{ij}) / \varepsilon} .

Each step is a log-sum-exp over all pairs, which never overflows; no cost matrix is stored. The
points are colours of two photographs, and the plan paints one with the colours of the other.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from sklearn.datasets import load_sample_image

temple = load_sample_image("china.jpg")[::3, ::3] / 255.0
flower = load_sample_image("flower.jpg")[::3, ::3] / 255.0
rng = np.random.default_rng(0)
x = rng.permutation(temple.reshape(-1, 3))[:800]
z = rng.permutation(flower.reshape(-1, 3))[:800]
log_a = log_b = np.full(800, -np.log(800))

# %%
# Inside the formula ``col`` is a number of each point of the second set: a potential plus the
# logarithm of a weight.

epsilon = 0.03
step = mc.kernel("col - sum((x-z)^2)/epsilon").bind(epsilon=epsilon)
f, g, errors = np.zeros(800), np.zeros(800), []
for _ in range(100):
    f = -epsilon * mc.kernel_reduce(step, x, z, "logsumexp", col=g / epsilon + log_b)
    sums = mc.kernel_reduce(step, z, x, "logsumexp", col=f / epsilon + log_a)
    errors.append(np.abs(np.exp(sums + g / epsilon) - 1).mean())  # masses at z
    g = -epsilon * sums
print(f"the masses are off by {errors[0]:.1%} after one step, by {errors[-1]:.3%} after 100")
assert errors[-1] < 0.01 < errors[0]

# %%
# The mean of both potentials, by the weights, is the mean cost of the plan plus epsilon times its
# entropy relative to independent colours. It is far below the mean cost of independent colours.

cost = f.mean() + g.mean()
independent = mc.kernel_reduce("sum((x-z)^2)", x, z, "sum").mean() / 800
print(f"mean squared distance: {independent:.3f} for independent colours; regularised: {cost:.3f}")
assert cost < 0.7 * independent

# %%
# A potential extends to any new colour :math:`t`, which goes to the mean of its targets,
# :math:`\sum_j z_j w_j(t) / \sum_j w_j(t)` with
# :math:`w_j(t) = b_j e^{(g_j - |t - z_j|^2) / \varepsilon}`: one product with four columns for all
# pixels.

weight = mc.kernel("exp(col - sum((x-z)^2)/epsilon)").bind(epsilon=epsilon)
columns = np.column_stack([z, np.ones(800)])
sums = mc.kernel_product(weight, temple.reshape(-1, 3), z, columns, col=g / epsilon + log_b)
painted = (sums[:, :3] / sums[:, 3:]).reshape(temple.shape)
assert np.abs(painted.mean((0, 1)) - flower.mean((0, 1))).max() < 0.05

figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
titles = ("a temple", "a flower", "the temple in the colours of the flower")
for axis, image, title in zip(axes, (temple, flower, painted), titles, strict=True):
    axis.imshow(image.clip(0, 1))
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
plt.show()
