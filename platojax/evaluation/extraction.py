"""Features of a frozen encoder."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def extract(
    encode: Callable[[jax.Array], jax.Array], observations: np.ndarray, *, batch_size: int = 256
) -> np.ndarray:
    """Encodes several observations of each item and takes their mean.

    Args:
      encode: jit-compiled `[B, ...] -> [B, L, D]` float32.
      observations: `[O, N, ...]`: O observations of N items.
      batch_size: items at a time. The last batch is padded, so that `encode` sees one shape.

    Returns:
      `[N, L, D]` float32.
    """
    count = observations.shape[1]
    means = []
    for start in range(0, count, batch_size):
        batch = observations[:, start : start + batch_size]
        missing = batch_size - batch.shape[1]
        padded = np.pad(batch, [(0, 0), (0, missing)] + [(0, 0)] * (batch.ndim - 2), mode="edge")
        features = jnp.mean(jnp.stack([encode(views) for views in padded]), axis=0)
        means.append(np.asarray(features)[: batch_size - missing])
    return np.concatenate(means)
