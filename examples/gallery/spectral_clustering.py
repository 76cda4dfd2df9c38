r"""
Spectral clustering: a flower is cut out
========================================

The points are pixels, joined by weights :math:`W_{ij} = k(x_i, x_j)` that are large for neighbours
of one colour. With the degrees :math:`D = \mathrm{diag}(W 1)`, the normalised Laplacian is

.. math:: L = I - D^{-1/2} W D^{-1/2} ,

and the eigenvector of its second smallest eigenvalue gives a partition of small normalised cut.
This vector belongs to the second largest eigenvalue of :math:`D^{-1/2} W D^{-1/2}`, and iterations
find it by products alone: the matrix of all pairs of pixels is never stored.
"""

import matplotlib.pyplot as plt
import numpy as np
from mercer.models import SpectralEmbedding
from sklearn.cluster import KMeans
from sklearn.datasets import load_sample_image

picture = load_sample_image("flower.jpg")[::10, ::10] / 255.0
height, width, _ = picture.shape
rows, columns = np.indices((height, width)).reshape(2, -1)

# %%
# A pixel has five features: its colour, in units of an eighth of its range, and its place, in units
# of 18 pixels.

features = np.column_stack([8 * picture.reshape(-1, 3), rows / 18.0, columns / 18.0])
print(f"{len(features)} pixels, so {len(features) ** 2 / 1e6:.1f} million weights")

# %%
# The embedding is one number for each pixel, and k-means divides these numbers in two.

embedding = SpectralEmbedding(1, affinity="exp(-sum((x-z)^2)/2)", random_state=0)
places = embedding.fit_transform(features)
parts = KMeans(2, n_init=10, random_state=0).fit_predict(places)

# %%
# The flower is yellow and red, and what surrounds it is green: a simple rule of colours checks the
# cut.

red, green, _ = picture.reshape(-1, 3).T
petals = (red > 0.5) & (red > 1.15 * green)
overlaps = [np.sum(petals & (parts == k)) / np.sum(petals | (parts == k)) for k in range(2)]
print(f"intersection over union with the petals: {max(overlaps):.0%}")
assert max(overlaps) > 0.85

figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
cut = np.where((parts == np.argmax(overlaps)).reshape(height, width, 1), picture, 1.0)
axes[0].imshow(picture)
axes[1].imshow(places.reshape(height, width), cmap="RdBu_r")
axes[2].imshow(cut)
titles = ("the photograph", "the eigenvector", "the part that is the flower")
for axis, title in zip(axes, titles, strict=True):
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
plt.show()
