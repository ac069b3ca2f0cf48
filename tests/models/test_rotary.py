"""Rotation keeps lengths, and scores depend only on distances."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.rotary import rotate, rotation

WIDTH = 6


@jax.jit
def rotated(vector: np.ndarray, position: np.ndarray) -> jax.Array:
    by = rotation(position[None, None], head_width=WIDTH, theta=100.0)
    return rotate(vector[None, None, None], by)[0, 0, 0]


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_rotation_keeps_lengths_and_scores_depend_only_on_distance(
    seed: int, one: int, other: int, shift: int
) -> None:
    query, key = np.random.default_rng(seed).standard_normal((2, WIDTH)).astype(np.float32)

    def score(query_at: int, key_at: int) -> float:
        return float(rotated(query, np.int32(query_at)) @ rotated(key, np.int32(key_at)))

    np.testing.assert_allclose(
        np.linalg.norm(rotated(query, np.int32(one))), np.linalg.norm(query), rtol=1e-5
    )
    np.testing.assert_allclose(score(one, other), score(one + shift, other + shift), atol=2e-3)
