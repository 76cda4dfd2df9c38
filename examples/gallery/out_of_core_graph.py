r"""
A graph of neighbours of points that are in a file
==================================================

The points are small patches of a photograph, in a file that is read in chunks: a memory map under
an array of Dask. The :math:`k` nearest neighbours of every patch are found one pair of chunks at a
time. Each chunk of queries keeps the best :math:`k` so far, so the memory is that of two chunks and
of the result, however long the file is.

The graph removes noise by non-local means: a pixel becomes the mean of the centres of similar
patches, wherever in the picture they are,

.. math:: \hat u_i = \sum_{j \in N(i)} e^{-d_{ij} / h} u_j \Big/ \sum_{j \in N(i)} e^{-d_{ij} / h} .
"""

from tempfile import TemporaryDirectory

import dask.array as da
import matplotlib.pyplot as plt
import mercer.dask
import numpy as np
from sklearn.datasets import load_sample_image

picture = load_sample_image("china.jpg")[40:280:2, 40:340:2].mean(axis=2).astype("f") / 255
rng = np.random.default_rng(0)
noisy = picture + 0.08 * rng.normal(size=picture.shape).astype("f")
windows = np.lib.stride_tricks.sliding_window_view(np.pad(noisy, 2, "reflect"), (5, 5))

# %%
# One row for each pixel, its patch of 5 x 5, goes into a file.

folder = TemporaryDirectory()
path = f"{folder.name}/patches.npy"
np.save(path, windows.reshape(-1, 25))
mapped = np.load(path, mmap_mode="r")
patches = da.from_array(mapped, chunks=(6000, -1))
print(f"{len(patches)} patches in {patches.numblocks[0]} chunks")

# %%
# The search is lazy: it becomes one task for each pair of chunks, and a merge.

values, indices = da.compute(*mercer.dask.knn("sum((x-z)^2)", patches, patches, k=17))

# %%
# The result is that of one call on all points.

some = np.s_[::500]
direct, _ = mercer.knn("sum((x-z)^2)", windows.reshape(-1, 25)[some], windows.reshape(-1, 25), k=17)
np.testing.assert_allclose(values[some], direct, rtol=1e-5, atol=1e-6)

# %%
# The noise alone makes the squared distance of two patches of one content
# :math:`2 \cdot 25\, \sigma^2`, which is subtracted before the weights are computed.

beyond = np.maximum(values - 50 * 0.08**2, 0)
weights = np.exp(-beyond / 0.1)
clean = (weights * noisy.ravel()[indices]).sum(1) / weights.sum(1)
clean = clean.reshape(picture.shape)
errors = [np.sqrt(np.mean((image - picture) ** 2)) for image in (noisy, clean)]
print(f"root mean square of the noise: {errors[0]:.3f} before, {errors[1]:.3f} after")
assert errors[1] < 0.75 * errors[0]

figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
titles = ("photograph", "with noise", "means over 17 neighbours")
for axis, image, title in zip(axes, (picture, noisy, clean), titles, strict=True):
    axis.imshow(image, cmap="gray", vmin=0, vmax=1)
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
place = 60 * picture.shape[1] + 40
rows, columns = np.divmod(indices[place], picture.shape[1])
axes[1].plot(columns, rows, "s", mec="tab:red", mfc="none", ms=5)
plt.show()
