r"""
Are two samples alike? The maximum mean discrepancy
===================================================

The mean embedding of a distribution :math:`P` is the function
:math:`\mu_P(t) = E_{x \sim P}\, k(x, t)`. With a Gauss kernel two distributions have the same
embedding only if they are equal, so the distance of the embeddings,

.. math:: \mathrm{MMD}^2 = E\, k(x, x') + E\, k(z, z') - 2\, E\, k(x, z) ,

is a measure of difference that needs no densities. Under the hypothesis of equal distributions the
labels of the points can be exchanged: permuting them gives the distribution of the statistic, and
from it a p-value.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from mercer.models import MMD
from sklearn.datasets import load_iris

iris = load_iris()
versicolor, virginica = iris.data[iris.target == 1], iris.data[iris.target == 2]

# %%
# Two kinds of irises differ; two halves of one kind do not.

different = MMD(random_state=0).test(versicolor, virginica)
alike = MMD(random_state=0).test(versicolor[::2], versicolor[1::2])
print(f"versicolor and virginica: MMD² {different.statistic:.3f}, p = {different.p_value:.4f}")
print(f"two halves of versicolor: MMD² {alike.statistic:.3f}, p = {alike.p_value:.4f}")
assert different.p_value < 0.002
assert alike.p_value > 0.05

# %%
# The difference of the embeddings is called the witness function: it is positive where the first
# sample has more points. For one feature, the length of the petal, it can be drawn. Both means are
# products with a kernel matrix that is never stored.

first, second = versicolor[:, [2]], virginica[:, [2]]
grid = np.linspace(2.5, 7.5, 301)[:, None]
kernel = mc.gauss(bandwidth=0.4)
witness = mc.kernel_product(kernel, grid, first, np.full(len(first), 1 / len(first)))
witness -= mc.kernel_product(kernel, grid, second, np.full(len(second), 1 / len(second)))
crossing = grid[:, 0][np.flatnonzero(np.diff(np.sign(witness)) < 0)]
print(f"the samples are equally dense at {crossing.round(2)} cm")
assert any(4.5 < place < 5.2 for place in crossing)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
bins = np.linspace(2.5, 7.5, 26)
for sample, name, color in ((first, "versicolor", "tab:orange"), (second, "virginica", "teal")):
    left.hist(sample[:, 0], bins, density=True, alpha=0.5, color=color, label=name)
left.plot(grid, witness, color="black", label="witness function")
left.axhline(0, color="gray", lw=0.6)
left.set(xlabel="length of the petal in cm", yticks=[])
left.legend(frameon=False)
right.hist(different.null, bins=40, color="lightgray", label="permuted labels")
right.axvline(different.statistic, color="tab:red", label="versicolor and virginica")
right.axvline(alike.statistic, color="tab:orange", ls="--", label="two halves of versicolor")
right.set(xlabel="MMD²", yticks=[])
right.legend(frameon=False)
plt.show()
