"""From rewards to what is compared: returns, penalties for length. NumPy, on the host.

Invariant: each function is about one sequence, and a reward is credited to what came before it
and never to what came after.
"""

import numpy as np

from ..types import Float32s, Int32s


def discounted_returns(rewards: Float32s, steps: Int32s, *, discount: float) -> Float32s:
    """Add up the rewards from each place on, later steps discounted.

    `R_t = sum_{s >= t} discount^(step_s - step_t) r_s`. With the number of the turn as the step,
    rewards of tokens are discounted by turns and not within them; with the place itself, by
    tokens.

    Args:
      rewards: f32[T].
      steps: i32[T], non-decreasing.
      discount: in (0, 1].

    Example:
      >>> rewards, turns = np.array([1, 0, 4, 8], np.float32), np.array([0, 0, 1, 2], np.int32)
      >>> discounted_returns(rewards, turns, discount=0.5).tolist()
      [5.0, 4.0, 8.0, 8.0]
    """
    returns = np.zeros(len(rewards), np.float64)
    later, step = 0.0, 0
    for place in range(len(rewards) - 1, -1, -1):
        later = later * discount ** (step - int(steps[place])) if later else 0.0
        later, step = later + float(rewards[place]), int(steps[place])
        returns[place] = later
    return returns.astype(np.float32)


def turn_returns(rewards: Float32s, *, discount: float) -> Float32s:
    """Add up the rewards of one episode's turns from each turn on: f32[turns]."""
    steps = np.arange(len(rewards), dtype=np.int32)
    return discounted_returns(rewards, steps, discount=discount)


def overlong_penalty(tokens: int, *, limit: int, buffer: int, penalty: float = 1.0) -> float:
    """Punish length softly: 0 up to `limit - buffer` tokens, then linearly down to `-penalty`.

    Args:
      tokens: sampled tokens of the episode (not characters, and not what it only read).
      limit: L_max, where the penalty is whole; 0 leaves it out.
      buffer: L_cache, >= 0, over how many tokens it grows.

    Returns:
      In `[-penalty, 0]`.

    Example:
      >>> [overlong_penalty(n, limit=100, buffer=20) for n in (80, 90, 100, 500)]
      [0.0, -0.5, -1.0, -1.0]

    Reference: Yu et al. 2025, DAPO, equation 13 (soft over-long punishment).
    """
    excess = tokens - (limit - buffer)
    if limit == 0 or excess <= 0:
        return 0.0
    return -penalty * min(1.0, excess / buffer if buffer else 1.0)
