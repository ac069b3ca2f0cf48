"""Advantages of the members of one group, from their rewards.

Invariant: over the members present the advantages sum to 0 and ignore a shift of all rewards;
equal rewards give exactly 0; a member that is not present gets 0 and counts nowhere.

The host calls these with NumPy while it forms a batch, and JAX programs may map or compile
them: so they use the operands' own array namespace and nothing else.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from .config import AdvantageName

Array = Any  # a NumPy or a JAX array
AdvantageEstimator = Callable[[Array, Array], Array]  # (rewards f32[G], present bool[G]) -> f32[G]


def group_relative(
    rewards: Array, present: Array, *, normalize_std: bool = True, epsilon: float = 1e-4
) -> Array:
    """Compare each reward with the group's mean, in units of the group's spread.

    `A_i = (r_i - mean(r)) / (std(r) + epsilon)`, with the population's standard deviation
    (ddof 0). Without `normalize_std` it is `r_i - mean(r)`: tasks of middling difficulty then
    get no more weight per unit of reward than others.

    Args:
      rewards: f32[G].
      present: bool[G], the members that have a reward; others may hold anything, also NaN.
      epsilon: keeps the division finite; small against the spread of rewards.

    Returns:
      f32[G].

    Example:
      >>> import numpy as np
      >>> rewards = np.array([0.0, 1.0, np.nan], np.float32)
      >>> group_relative(rewards, np.array([True, True, False]), normalize_std=False).tolist()
      [-0.5, 0.5, 0.0]

    Reference: Shao et al. 2024, DeepSeekMath, section 4.1.2 (GRPO, outcome supervision);
      without the standard deviation Liu et al. 2025, Dr. GRPO, equation 3.
    """
    centred, count = _centre(rewards, present)
    if not normalize_std:
        return centred
    spread = ((centred * centred).sum() / count) ** 0.5
    return centred / (spread + epsilon)


def leave_one_out(rewards: Array, present: Array) -> Array:
    """Compare each reward with the mean of the other members' rewards.

    `A_i = r_i - mean_{j != i}(r_j) = n / (n - 1) * (r_i - mean(r))`: the baseline does not
    depend on the member itself, so it adds no bias. A member alone gets 0.

    Args:
      rewards: f32[G].
      present: bool[G], as in `group_relative`.

    Returns:
      f32[G].

    Reference: Kool et al. 2019, equation 7; Ahmadian et al. 2024, RLOO, equation 8.
    """
    xp = rewards.__array_namespace__()
    centred, count = _centre(rewards, present)
    return centred * (count / xp.maximum(count - 1, xp.ones_like(count)))


def uncompared(rewards: Array, present: Array) -> Array:
    """Take the rewards as they are: `A_i = r_i`, 0 for members that are not present."""
    xp = rewards.__array_namespace__()
    return xp.where(present, rewards, xp.zeros_like(rewards))


def batch_scaled(advantages: Array, *, epsilon: float = 1e-4) -> Array:
    """Divide advantages by the spread of the whole batch's.

    `A / (sqrt(mean(A^2)) + epsilon)` over all members of all groups: each group keeps its own
    baseline, and a group with small differences keeps small advantages. 0 stays exactly 0.

    Args:
      advantages: f32[N], of the members present, whose mean is 0 in each group.

    Reference: Hu et al. 2025, REINFORCE++, section 3 (with a baseline); Liu et al. 2025, Tricks
      or Traps, section 4.1 (mean by group, deviation by batch).
    """
    return advantages / ((advantages * advantages).mean() ** 0.5 + epsilon)


def batch_whitened(advantages: Array, *, epsilon: float = 1e-4) -> Array:
    """Compare rewards with the whole batch's mean, in units of its spread.

    `(A - mean(A)) / (std(A) + epsilon)`, ddof 0.

    Args:
      advantages: f32[N], of the members present.

    Reference: Hu et al. 2025, REINFORCE++, equation 5.
    """
    shifted = advantages - advantages.max()  # equal ones are exactly 0 then, see `_centre`
    return batch_scaled(shifted - shifted.mean(), epsilon=epsilon)


def estimator(name: AdvantageName, *, normalize_std: bool = True) -> AdvantageEstimator:
    """Give the function that a configuration names."""
    table: dict[AdvantageName, AdvantageEstimator] = {
        "group_relative": partial(group_relative, normalize_std=normalize_std),
        "leave_one_out": leave_one_out,
        "none": uncompared,
    }
    return table[name]


def _centre(rewards: Array, present: Array) -> tuple[Array, Array]:
    """Subtract the mean over the members present; return it with their number, at least 1.

    The largest reward is subtracted first: equal rewards are then exactly 0, where their mean
    could be off by a rounding error that a division by the spread would blow up.
    """
    xp = rewards.__array_namespace__()
    nothing = xp.zeros_like(rewards)
    ones = present.astype(rewards.dtype).sum()
    count = xp.maximum(ones, xp.ones_like(ones))
    largest = xp.where(present, rewards, xp.full_like(rewards, -xp.inf)).max()
    shifted = xp.where(present, rewards - largest, nothing)
    return xp.where(present, shifted - shifted.sum() / count, nothing), count
