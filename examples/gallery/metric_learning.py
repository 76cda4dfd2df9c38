r"""
Learning which directions matter
================================

A recursive feature machine alternates two steps. The first one fits kernel ridge regression with a
kernel of the distance :math:`\sqrt{(x - z)^T M (x - z)}`. The second one replaces the metric
:math:`M` by (a power of) the average outer product of the fitted function's gradients,

.. math:: M \leftarrow \Big(\frac1n \sum_i \nabla f(x_i)\, \nabla f(x_i)^T\Big)^{1/2} ,

so that the next distance is large in directions in which the function changes. The data are ten
measurements of 442 patients with diabetes, and thirty columns of noise that the model is not told
about.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import RFMRegressor
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

table = load_diabetes()
noise = np.random.default_rng(0).normal(size=(len(table.data), 30))
x = np.hstack([StandardScaler().fit_transform(table.data), noise])
y = (table.target - table.target.mean()) / table.target.std()
train, test = np.s_[:330], np.s_[330:]

# %%
# Without a round the distance is Euclidean, and thirty of its forty addends are noise. Five rounds
# learn another metric.

plain = RFMRegressor(alpha=10.0, n_rounds=0, random_state=0).fit(x[train], y[train])
model = RFMRegressor(alpha=10.0, n_rounds=5, random_state=0).fit(x[train], y[train])
scores = [machine.score(x[test], y[test]) for machine in (plain, model)]
print(f"explained variance: {scores[0]:.2f}, with the learned metric {scores[1]:.2f}")
assert scores[1] > scores[0] + 0.05

# %%
# The diagonal of :math:`M` weighs the features. A measurement matters if its weight is above
# that of every column of noise.

weights = model.feature_importances_
matter = [name for k, name in enumerate(table.feature_names) if weights[k] > weights[10:].max()]
print("above all noise:", ", ".join(matter))
assert {"bmi", "bp", "s5"} <= set(matter)

# %%
# Entries off the diagonal say that features act together. The first eigenvector is the direction
# in which the function changes most.

values, vectors = np.linalg.eigh(model.metric_)
direction = vectors[:, -1] * np.sign(vectors[2, -1])
print(f"the first direction has {values[-1] / values.sum():.0%} of the trace of M")
assert np.abs(direction[:10]).max() > 3 * np.abs(direction[10:]).max()

names = [*table.feature_names, *["noise"] * 10]
limit = np.abs(model.metric_).max()
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
shown = left.imshow(model.metric_[:20, :20], cmap="RdBu_r", vmin=-limit, vmax=limit)
left.set_xticks(range(20), names, rotation=90, fontsize=7)
left.set_yticks(range(20), names, fontsize=7)
left.set_title("the learned metric M, 20 of 40 columns", fontsize=10)
figure.colorbar(shown, ax=left, shrink=0.85)
colors = ["teal"] * 10 + ["lightgray"] * 10
right.bar(range(20), direction[:20], color=colors)
right.axhline(0, color="black", lw=0.6)
right.set_xticks(range(20), names, rotation=90, fontsize=8)
right.set_title("the direction in which the function changes most", fontsize=10)
plt.show()
