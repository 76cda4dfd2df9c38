r"""
Nyström features, and which landmarks to take
=============================================

With :math:`m` landmarks among :math:`n` points, a kernel matrix is approximated by

.. math:: K \approx K_{nm} K_{mm}^{-1} K_{mn} = \Phi \Phi^T, \qquad \Phi = K_{nm} K_{mm}^{-1/2} ,

so that a linear model of the :math:`m` features :math:`\Phi` does what a kernel model would. The
landmarks decide how good it is. Randomly pivoted Cholesky draws each one with
probabilities in proportion to what the earlier ones leave of the diagonal of :math:`K`; drawing
uniformly misses what is rare.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import Nystroem
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import scale

x, y = load_breast_cancer(return_X_y=True)
x = scale(x)
order = np.random.default_rng(0).permutation(len(x))
train, test = order[:400], order[400:]

# %%
# The kernel is 1 at every point with itself, so what the features leave of the diagonal is a share
# of the trace.


def fit(landmarks, count, seed):
    options = {"kernel": "gauss", "bandwidth": 4.0, "landmarks": landmarks, "random_state": seed}
    model = Nystroem(n_components=count, **options).fit(x[train])
    features = model.transform(x)
    return model, features, 1 - np.square(features[train]).sum(axis=1).mean()


# %%
# Each number of landmarks is drawn three times. Few landmarks can only cover the bulk of the
# points, however they are drawn; with more of them the pivoted ones also reach the outliers.

counts = (10, 20, 40, 80, 160)
ways = ("uniform", "rpcholesky")
left_out = {
    way: np.array([[fit(way, count, seed)[2] for seed in range(3)] for count in counts])
    for way in ways
}
for count, uniform, pivoted in zip(counts, *(v.mean(1) for v in left_out.values()), strict=True):
    print(f"{count:4d} landmarks leave {uniform:.4f} (uniform), {pivoted:.4f} (pivoted)")
assert left_out["rpcholesky"][-1].mean() < 0.7 * left_out["uniform"][-1].mean()

# %%
# A linear classifier of forty such features classifies most tumours right.

model, features, _ = fit("rpcholesky", 40, 0)
accuracy = RidgeClassifier(0.1).fit(features[train], y[train]).score(features[test], y[test])
print(f"{accuracy:.1%} of 169 tumours that were held out are classified right")
assert accuracy > 0.93

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for way, color in zip(ways, ("gray", "teal"), strict=True):
    left.loglog(counts, left_out[way].mean(1), "o-", color=color, label=way)
    left.fill_between(counts, left_out[way].min(1), left_out[way].max(1), color=color, alpha=0.2)
left.set(xlabel="landmarks", ylabel="share of the trace that is left out")
left.legend(frameon=False)
axes = np.linalg.svd(x[train], full_matrices=False)[2][:2]
right.scatter(*(x[train] @ axes.T).T, s=6, color="lightgray", label="400 tumours")
right.scatter(*(model.components_ @ axes.T).T, s=18, color="teal", label="40 pivoted landmarks")
right.set(xlabel="first principal component", ylabel="second")
right.legend(frameon=False)
plt.show()
