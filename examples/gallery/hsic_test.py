r"""
Dependence that a correlation does not see
==========================================

The Hilbert-Schmidt independence criterion compares the joint distribution of two quantities with
the product of their distributions, by kernels :math:`K` of the first and :math:`L` of the second
one. With the centring matrix :math:`H = I - \frac1n 1 1^T` its plain estimate is

.. math:: \mathrm{HSIC} = \frac{1}{n^2} \, \mathrm{tr}(K H L H) .

With Gauss kernels its limit is 0 only for independent quantities, whereas a correlation of 0 rules
out nothing but a linear relation. Permuting the observations of one side gives the p-value.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import HSIC
from sklearn.datasets import load_wine

wine = load_wine()
x, names = wine.data, wine.feature_names
count = len(names)

# %%
# There are 78 pairs of the thirteen measurements of 178 wines.

p_values = np.ones((count, count))
for i in range(count):
    for j in range(i):
        test = HSIC(n_permutations=400, random_state=0).test(x[:, [i]], x[:, [j]])
        p_values[i, j] = p_values[j, i] = test.p_value
correlations = np.abs(np.corrcoef(x.T))

# %%
# Which pairs are dependent at the level of one per cent although their correlation is below a
# tenth?

hidden = np.argwhere(np.tril((p_values < 0.01) & (correlations < 0.1), -1))
for i, j in hidden:
    numbers = f"correlation {correlations[i, j]:.2f}, p = {p_values[i, j]:.3f}"
    print(f"{names[i]} and {names[j]}: {numbers}")
assert len(hidden) > 0

# %%
# The plain estimate by the formula above agrees in its order of the pairs: it is larger for a pair
# that is dependent.


def plain(a, b):
    gram = [np.exp(-((v[:, None] - v) ** 2) / (2 * v.var())) for v in (a, b)]
    centred = [k - k.mean(0) - k.mean(1)[:, None] + k.mean() for k in gram]
    return np.mean(centred[0] * centred[1])


i, j = hidden[np.argmin(correlations[tuple(hidden.T)])]
shuffled = np.random.default_rng(0).permutation(x[:, j])
assert plain(x[:, i], x[:, j]) > 2 * plain(x[:, i], shuffled)

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
left.imshow(correlations, cmap="Oranges", vmin=0, vmax=1)
left.set_title("magnitude of the correlation", fontsize=10)
middle.imshow(-np.log10(p_values), cmap="Oranges")
middle.set_title("−log₁₀ of the p-value of HSIC", fontsize=10)
for axis in (left, middle):
    axis.plot(hidden[:, 1], hidden[:, 0], "s", mec="black", mfc="none", ms=12)
    axis.set_xticks(range(count), names, rotation=90, fontsize=6)
    axis.set_yticks(range(count), names, fontsize=6)
right.scatter(x[:, i], x[:, j], c=wine.target, s=12, cmap="viridis")
right.set(xlabel=names[i], ylabel=names[j])
right.set_title("uncorrelated, and not independent", fontsize=10)
plt.show()
