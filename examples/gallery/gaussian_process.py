r"""
A Gaussian process with bands
=============================

A Gaussian process is a distribution over functions: the values at any points have a joint normal
distribution, with covariances :math:`a\, k(x_m / \ell, x_n / \ell)`. After :math:`n` noisy
observations :math:`y` the function at a new point :math:`x_*` is normal with

.. math::

    \mu_* = k_*^T (K + \sigma^2 I)^{-1} y, \qquad
    s_*^2 = k(x_*, x_*) - k_*^T (K + \sigma^2 I)^{-1} k_* .

The amplitude :math:`a`, the length scale :math:`\ell` and the variance of the noise
:math:`\sigma^2` are those that maximise the marginal likelihood, which weighs the fit against the
freedom of the function:

.. math::

    \log p(y) = -\tfrac12 y^T (K + \sigma^2 I)^{-1} y - \tfrac12 \log\det(K + \sigma^2 I)
    - \tfrac n2 \log 2\pi .
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import GaussianProcessRegressor
from sklearn.datasets import load_diabetes

table = load_diabetes(scaled=False)
bmi, progression = table.data[:, [2]], table.target

# %%
# The patients are split: 300 teach the model, 142 check its bands.

order = np.random.default_rng(0).permutation(len(bmi))
train, test = order[:300], order[300:]
model = GaussianProcessRegressor("gauss").fit(bmi[train], progression[train])
print(f"length scale {model.lengthscale_[0]:.1f} kg/m², share of noise {model.noise_:.2f}")

# %%
# There are two bands. The narrow one says where the function is; the wide one, where a new patient
# is. The second has to contain about 95 % of the patients that the model has not seen.

mean, std = model.predict(bmi[test], return_std=True, include_noise=True)
inside = np.mean(np.abs(progression[test] - mean) < 1.96 * std)
print(f"{inside:.1%} of the new patients are inside of the wide band")
assert 0.9 < inside < 0.99

# %%
# Where there are no patients the function is uncertain, and the bands open.

grid = np.linspace(15, 46, 201)[:, None]
mean, std = model.predict(grid, return_std=True)
_, spread = model.predict(grid, return_std=True, include_noise=True)
assert std[-1] > 2 * std[100]

figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
for width, opacity, name in ((spread, 0.15, "95 % of new patients"), (std, 0.4, "the function")):
    low, high = mean - 1.96 * width, mean + 1.96 * width
    axes.fill_between(grid[:, 0], low, high, color="tab:cyan", alpha=opacity, lw=0, label=name)
axes.plot(grid, mean, color="teal", label="mean")
axes.plot(bmi[train], progression[train], ".", color="gray", ms=4, label="300 patients")
axes.plot(bmi[test], progression[test], "x", color="tab:red", ms=4, label="142 new patients")
axes.set(xlabel="body mass index in kg/m²", ylabel="progression of diabetes", xlim=(15, 46))
axes.legend(frameon=False, loc="upper left")
plt.show()
