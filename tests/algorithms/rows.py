"""Two packed rows with gaps in their masks, and sequences that differ in length."""

import jax.numpy as jnp
import numpy as np

IDS = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2, 3, 3, 0, 0]], jnp.int32)
MASK = jnp.array(
    [[0, 1, 1, 1, 0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 1, 0, 0, 0, 0]], bool
)  # the last sequence of the second row has no counted token


def sequences():
    """Places of the counted tokens of each sequence that has any, as indices of a row's arrays."""
    ids, mask = np.asarray(IDS), np.asarray(MASK)
    return [
        (np.full(count, row), np.flatnonzero((ids[row] == number) & mask[row]))
        for row in range(len(ids))
        for number in range(1, ids[row].max() + 1)
        if (count := int(((ids[row] == number) & mask[row]).sum()))
    ]


def draw(seed, shape=IDS.shape):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)
