r"""
Matching surfaces
=================

Two triangulated surfaces without corresponding points are compared by their varifolds. A triangle
enters with its centre :math:`c_i`, its unit normal :math:`n_i` and its area :math:`a_i`, and the
inner product of two surfaces is

.. math:: \langle S, T \rangle = \sum_{ij} a_i a_j \, e^{-|c_i - c_j|^2 / s^2} (n_i \cdot n_j)^2 .

Their squared distance is
:math:`\langle S, S \rangle - 2 \langle S, T \rangle + \langle T, T \rangle`. A sphere is deformed
by a smooth field :math:`\sum_m k(x, x_m)\, p_m` until it matches a peanut.
"""

import matplotlib.pyplot as plt
import mercer as mc
import torch
from scipy.spatial import ConvexHull


def sphere(count):
    """A Fibonacci lattice, and the triangles of its convex hull."""
    k = torch.arange(count, dtype=torch.float64) + 0.5
    height, angle = 1 - 2 * k / count, torch.pi * (1 + 5**0.5) * k
    ring = torch.sqrt(1 - height**2)
    points = torch.stack([ring * torch.cos(angle), ring * torch.sin(angle), height], dim=1)
    return points, torch.as_tensor(ConvexHull(points.numpy()).simplices, dtype=torch.int64)


def varifold(points, triangles):
    """Centres and normals [T, 6] in single precision, and areas [T]."""
    a, b, c = (points[triangles[:, k]] for k in range(3))
    normals = torch.linalg.cross(b - a, c - a) / 2
    areas = torch.linalg.norm(normals, dim=1, keepdim=True)
    return torch.cat([(a + b + c) / 3, normals / areas], dim=1).float(), areas[:, 0].float()


# The weights w choose the centre for one sum and the normal for the other one.
mask = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
kernel = mc.kernel("exp(-sum(w*(x-z)^2)/s^2) * square(sum((1-w)*x*z))").bind(s=0.4)


def inner(first, second):
    return first[1] @ mc.kernel_product(kernel, first[0], second[0], second[1], w=mask)


# %%
# The target has other points and other triangles than the sphere. Adam changes the momenta p.

points, triangles = sphere(300)
ball, target_triangles = sphere(500)
target = ball * (0.6 + 0.5 * ball[:, 2:] ** 2)
goal = varifold(target, target_triangles)
goal_norm = inner(goal, goal)
field = mc.kernel_matrix("gauss", points, bandwidth=0.5)
momenta, losses = torch.zeros_like(points, requires_grad=True), []
optimiser = torch.optim.Adam([momenta], lr=0.025)
for _ in range(80):
    own = varifold(points + field @ momenta, triangles)
    loss = (inner(own, own) - 2 * inner(own, goal) + goal_norm) / goal_norm
    (momenta.grad,) = torch.autograd.grad(loss, momenta)
    optimiser.step()
    losses.append(loss.item())

# %%
# No vertex is far from the target, whose own points are 0.1 apart. No pair of triangles was stored.

result = points + field @ momenta.detach()
gaps, _ = mc.knn("sqrt(sum((x-z)^2))", result, target, k=1)
print(f"squared distance: {losses[0]:.3f} before, {losses[-1]:.5f} after; gap {gaps.max():.2f}")
assert losses[-1] < 0.01 * losses[0]
assert gaps.max() < 0.15

figure, axes = plt.subplots(1, 3, figsize=(11, 4), subplot_kw={"projection": "3d"})
shapes = ((points, triangles), (result, triangles), (target, target_triangles))
for axis, (shape, corners), name in zip(axes, shapes, ("sphere", "match", "target"), strict=True):
    axis.plot_trisurf(*shape.T, triangles=corners, cmap="viridis", lw=0.2, edgecolor="gray")
    axis.set(title=name, aspect="equal", xticks=[], yticks=[], zticks=[])
plt.show()
