"""pykeops.torch.cluster: labels, intervals and ranges of block-sparse reductions."""

from mercer.compat.pykeops._clusters import *  # noqa: F403
