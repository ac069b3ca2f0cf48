"""Two packed rows with gaps in their masks, and sequences that differ in length."""

import numpy as np

IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2, 3, 3, 0, 0]], np.int32)
MASK = np.array(
    [[0, 1, 1, 1, 0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 1, 0, 0, 0, 0]], bool
)  # the last sequence of the second row has no counted token


def sequences():
    """Places of the counted tokens of each sequence that has any, as indices of a row's arrays."""
    return [
        (np.full(count, row), np.flatnonzero((IDS[row] == number) & MASK[row]))
        for row in range(len(IDS))
        for number in range(1, IDS[row].max() + 1)
        if (count := int(((IDS[row] == number) & MASK[row]).sum()))
    ]


def draw(seed, shape=IDS.shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
