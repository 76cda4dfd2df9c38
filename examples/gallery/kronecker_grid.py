r"""
A Gaussian process on a grid of 35 200 pixels
=============================================

Where the points are all pairs of some rows and some columns, and the kernel is a kernel of the rows
times a kernel of the columns, the kernel matrix is a Kronecker product :math:`K = K_1 \otimes K_2`.
With the eigendecompositions :math:`K_i = Q_i \Lambda_i Q_i^T`, both parts of the likelihood are
cheap:

.. math::

    (K + \sigma^2 I)^{-1} &= (Q_1 \otimes Q_2) (\Lambda_1 \otimes \Lambda_2 + \sigma^2 I)^{-1}
    (Q_1 \otimes Q_2)^T , \\
    \log\det(K + \sigma^2 I) &= \textstyle\sum_{ij} \log(\lambda_i \mu_j + \sigma^2) .

The matrix of 35 200 points would have 1.2 billion entries; its factors have 160 and 220 rows.
"""

import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from mercer import kron
from sklearn.datasets import load_sample_image

picture = load_sample_image("flower.jpg")[140:300, 240:460].mean(axis=2) / 255
noise = 0.1
noisy = picture + noise * np.random.default_rng(0).normal(size=picture.shape)
mean = noisy.mean()
y = (noisy - mean).ravel()

# %%
# The two factors are Matérn kernels; the amplitude of 0.05 is that of their product.


def factors(bandwidth):
    axes = [np.arange(n, dtype=float)[:, None] for n in picture.shape]
    return [0.05**0.5 * mc.kernel_matrix("matern32", a, bandwidth=bandwidth) for a in axes]


# %%
# The bandwidth is the one of largest marginal likelihood, which is computed exactly.

bandwidths = np.array([1.5, 3.0, 6.0, 12.0, 24.0])
likelihoods = []
for bandwidth in bandwidths:
    k = factors(bandwidth)
    quadratic = y @ kron.solve(k, y, shift=noise**2)
    likelihoods.append(-0.5 * (quadratic + kron.logdet(k, shift=noise**2)))
best = bandwidths[np.argmax(likelihoods)]
print(f"bandwidth {best:g} pixels")
assert 1.5 < best < 24.0

# %%
# The mean of the process given the noisy pixels is :math:`K (K + \sigma^2 I)^{-1} y`.

k = factors(best)
posterior = mean + kron.kron_matmul(k, kron.solve(k, y, shift=noise**2)).reshape(picture.shape)
error = np.sqrt(np.mean((posterior - picture) ** 2))
print(f"the noise of {noise} is down to {error:.3f}")
assert error < 0.65 * noise

figure, axes = plt.subplots(1, 4, figsize=(14, 2.8), layout="constrained")
panels = {"photograph": picture, "with noise": noisy, "mean of the process": posterior}
for axis, (title, values) in zip(axes, panels.items(), strict=False):
    axis.imshow(values, cmap="gray", vmin=0, vmax=1)
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
axes[3].semilogx(bandwidths, np.array(likelihoods) / 1000, "o-", color="teal")
axes[3].set(xlabel="bandwidth in pixels", xticks=bandwidths, xticklabels=bandwidths)
axes[3].set_title("logarithm of the likelihood, in 1000s", fontsize=10)
axes[3].minorticks_off()
plt.show()
