r"""
k-means: a photograph in twelve colours
=======================================

k-means looks for centres :math:`c_1 \dots c_k` of least :math:`\sum_i \min_j d(x_i, c_j)`, in two
steps that alternate. Each point goes to the nearest centre, a search that stores no matrix of
pairs; each centre goes to where the sum of distances to its points is least. For
:math:`d = |x - c|^2` that is their mean. For any other distance another formula is enough: with
:math:`d = |x - c|_1` the centres are medians, and the method is called k-medians.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_sample_image

picture = load_sample_image("china.jpg")[::2, ::2] / 255.0
points = picture.reshape(-1, 3)
first = np.random.default_rng(0).permutation(points)[:12]


def cluster(formula, middle, centres, steps=40):
    """The centres, the part that each point belongs to, and the mean distance after each step."""
    centres, distances = centres.copy(), []
    for _ in range(steps):
        nearest, parts = (a[:, 0] for a in mc.knn(formula, points, centres, k=1))
        distances.append(nearest.mean())
        for j in np.unique(parts):
            centres[j] = middle(points[parts == j], axis=0)
    return centres, parts, distances


# %%
# Both kinds start from the same pixels.

means, parts, squares = cluster("sum((x-z)^2)", np.mean, first)
medians, parts_1, sums = cluster("sum(abs(x-z))", np.median, first)

# %%
# No step makes the sum larger. scikit-learn, which starts at the same centres, arrives at the same
# sum.

assert np.all(np.diff(squares) <= 1e-12)
assert np.all(np.diff(sums) <= 1e-12)
peer = KMeans(12, init=first, n_init=1, max_iter=40, tol=0).fit(points)
print(f"mean square: {squares[-1]:.6f}; scikit-learn {peer.inertia_ / len(points):.6f}")
assert abs(squares[-1] / (peer.inertia_ / len(points)) - 1) < 0.01

# %%
# The strips below the pictures show the colours, ordered by brightness.

figure, axes = plt.subplots(2, 3, figsize=(12, 3.6), height_ratios=(8, 1), layout="constrained")
panels = {
    "the photograph": (picture, first),
    "12 means": (means[parts].reshape(picture.shape), means),
    "12 medians": (medians[parts_1].reshape(picture.shape), medians),
}
for (image, strip), (title, (values, colors)) in zip(axes.T, panels.items(), strict=True):
    image.imshow(values)
    image.set_title(title, fontsize=10)
    if title != "the photograph":
        strip.imshow(colors[np.argsort(colors.sum(1))][None], aspect="auto")
    image.set_axis_off()
    strip.set_axis_off()
plt.show()
