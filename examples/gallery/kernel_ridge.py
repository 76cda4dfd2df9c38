r"""
A photograph from a twentieth of its pixels
===========================================

Kernel ridge regression finds the function :math:`f(x) = \sum_n c_n k(x, x_n)` that minimises

.. math:: \sum_n |y_n - f(x_n)|^2 + \alpha \, \|f\|_k^2 ,

where :math:`\|f\|_k` is the norm of the space of functions that belongs to the kernel :math:`k`.
Its coefficients solve the linear system :math:`(K + \alpha I)\, c = y` with
:math:`K_{mn} = k(x_m, x_n)`. Here :math:`x` is a place in a photograph, and :math:`y` is the colour
there: three outputs, for which the system is solved at once.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import KernelRidge, KNeighborsRegressor
from sklearn.datasets import load_sample_image

picture = load_sample_image("flower.jpg")[60:360:2, 120:560:2] / 255.0
height, width, _ = picture.shape
rows, columns = np.indices((height, width))
places = np.stack([rows.ravel(), columns.ravel()], axis=1).astype(float)
colours = picture.reshape(-1, 3)

# %%
# One pixel in twenty is known, at random places.

known = np.random.default_rng(0).permutation(len(places))[: len(places) // 20]
print(f"{len(known)} of {len(places)} pixels are known")

# %%
# The kernel decides how the function fills the gaps. Functions of the Matérn kernel with
# :math:`\nu = 1/2`, :math:`k = \exp(-|x - z| / b)`, may have kinks, so edges stay sharper than with
# a smooth Gauss kernel. The bandwidth :math:`b` is a length in pixels.

smooth = KernelRidge("matern12", bandwidth=24.0, alpha=1e-3).fit(places[known], colours[known])
nearest = KNeighborsRegressor(1).fit(places[known], colours[known])


# %%
# The error is the root of the mean squared difference of the colours, whose values lie between 0
# and 1.


def error(model):
    return np.sqrt(np.mean((model.predict(places) - colours) ** 2))


errors = {"nearest pixel": error(nearest), "kernel ridge": error(smooth)}
print("error:", ", ".join(f"{value:.3f} {name}" for name, value in errors.items()))
assert errors["kernel ridge"] < 0.85 * errors["nearest pixel"]

# %%
# Both models see the same pixels.

seen = np.ones_like(colours)
seen[known] = colours[known]
panels = {
    "what is known": seen,
    f"nearest pixel: error {errors['nearest pixel']:.3f}": nearest.predict(places),
    f"kernel ridge: error {errors['kernel ridge']:.3f}": smooth.predict(places),
    "the photograph": colours,
}
figure, axes = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
for axis, (title, values) in zip(axes.flat, panels.items(), strict=True):
    axis.imshow(values.reshape(picture.shape).clip(0, 1))
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
plt.show()
