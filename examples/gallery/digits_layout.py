r"""
A layout of digits from their neighbours
========================================

Layouts such as t-SNE and UMAP place points :math:`y_i` in the plane so that neighbours in many
dimensions stay neighbours. The affinities :math:`p_{ij}` are 0 but for the :math:`k` nearest
neighbours, and the layout minimises a divergence between them and
:math:`q_{ij} = (1 + |y_i - y_j|^2)^{-1}`, normalised by :math:`Z = \sum_{ij} q_{ij}`. Its gradient
is an attraction along the edges of the graph of neighbours and a repulsion between all pairs:

.. math:: \sum_j p_{ij}\, q_{ij} (y_i - y_j) - \frac1Z \sum_j q_{ij}^2 (y_i - y_j) .

Programs approximate the second sum, by trees or by drawing pairs at random. Here it is exact: with
:math:`w = q^2` it is :math:`y_i \sum_j w_{ij} - \sum_j w_{ij} y_j`, one product of a kernel matrix
with three columns.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

images, labels = load_digits(return_X_y=True)
n, k = len(images), 15

# %%
# The affinities decay with the distance in units of the distance of the last neighbour, and are
# made symmetric.

squares, neighbours = mc.knn("sum((x-z)^2)", images, images, k=k + 1)
squares, neighbours = squares[:, 1:], neighbours[:, 1:]  # without the point itself
weights = np.exp(-3 * squares / squares[:, -1:])
rows = np.repeat(np.arange(n), k)
p = csr_array((weights.ravel(), (rows, neighbours.ravel())), shape=(n, n))
p = ((p + p.T) / (2 * p.sum())).tocoo()
i, j = p.coords

# %%
# The layout starts at the first two principal components and follows the gradient with momentum.
# The attraction is larger for a while, so that clusters find together before they push each other
# away.

start = PCA(2, random_state=0).fit_transform(images)
y = (1e-2 * start / start.std()).astype(np.float32)
velocity = np.zeros_like(y)
for step in range(350):
    columns = np.column_stack([y, np.ones_like(y[:, :1])])
    products = mc.kernel_product("1/square(1 + sum((x-z)^2))", y, y, columns)
    repulsion = y * products[:, 2:] - products[:, :2]
    z = mc.kernel_reduce("1/(1 + sum((x-z)^2))", y, y, "sum").sum()
    gap = y[i] - y[j]
    pull = (p.data / (1 + np.square(gap).sum(1)))[:, None] * gap
    attraction = np.column_stack([np.bincount(i, pull[:, c], n) for c in range(2)])
    gradient = 4 * ((12 if step < 100 else 1) * attraction - repulsion / z)
    velocity = (0.5 if step < 100 else 0.8) * velocity - 200 * gradient.astype(np.float32)
    y = y + velocity

# %%
# Trustworthiness is 1 if all neighbours in the plane are neighbours in the data. One neighbour in
# the plane is enough to read a digit.

trust = [trustworthiness(images, places, n_neighbors=k) for places in (start, y)]
_, nearest = mc.knn("sum((x-z)^2)", y, y, k=2)
right = np.mean(labels[nearest[:, 1]] == labels)
print(f"trustworthiness {trust[0]:.3f} of the components, {trust[1]:.3f} of the layout")
print(f"{right:.1%} of the points have the digit of their neighbour")
assert trust[1] > 0.95 > trust[0]
assert right > 0.95

figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
for axis, points, title in zip(axes, (start, y), ("components", "layout"), strict=True):
    shown = axis.scatter(*points.T, c=labels, cmap="tab10", s=4, vmin=-0.5, vmax=9.5)
    axis.set(xticks=[], yticks=[], title=title)
figure.colorbar(shown, ax=axes, ticks=range(10))
plt.show()
