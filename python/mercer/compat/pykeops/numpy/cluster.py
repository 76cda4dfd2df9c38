"""pykeops.numpy.cluster: labels, intervals and ranges of block-sparse reductions."""

from mercer.compat.pykeops._clusters import (
    cluster_ranges,
    cluster_ranges_centroids,
    from_matrix,
    grid_cluster,
    sort_clusters,
    swap_axes,
)  # fmt: skip

__all__ = [
    "cluster_ranges", "cluster_ranges_centroids", "from_matrix", "grid_cluster", "sort_clusters",
    "swap_axes",
]  # fmt: skip
