"""Credit that needs the learner: penalties against a reference, and a critic's advantages.

Invariant: computed once a batch, before its first epoch, from parameters at the start of the
update; constants from then on, and the same however the batch is split.
"""

from typing import NamedTuple

import jax

from ..algorithms.config import AlgorithmConfig
from ..algorithms.critic import gae, whitened
from ..algorithms.divergences import k1_penalties
from ..algorithms.reductions import keep
from ..types import TrainBatch
from .logprobs import counted_tokens
from .step import Anchors


class Credit(NamedTuple):
    """What a batch's tokens are worth, f32[A, R, T] each.

    Attributes:
      advantages: for the policy.
      returns: what the critic learns; where there is none, of no use.
    """

    advantages: jax.Array
    returns: jax.Array


def assign_credit(
    batch: TrainBatch, anchors: Anchors, values: jax.Array, *, config: AlgorithmConfig
) -> Credit:
    """Turn what the host has put into `batch.advantages` into advantages of tokens.

    Args:
      batch: its advantages are those of the rewards; with a critic, the tokens' rewards.
      anchors: of the old and the reference policy.
      values: f32[A, R, T] of the critic; anything where there is none.
    """
    mask, ids = counted_tokens(batch), batch.segment_ids
    advantages = keep(batch.advantages, mask)
    if config.kl.kind == "k1_reward" and config.kl.coefficient > 0:
        old, ref = keep(anchors.old, mask), keep(anchors.ref, mask)
        penalties = old - ref if config.has_critic else k1_penalties(old, ref, ids)
        advantages = advantages - config.kl.coefficient * penalties
    if config.has_critic:
        rewards = config.rewards
        advantages = gae(
            advantages,
            values,
            mask,
            ids,
            discount=rewards.discount,
            trace=rewards.critic.gae_lambda,
        )
    returns = advantages + keep(values, mask)
    if config.normalize == "batch":
        advantages = whitened(advantages, mask)
    return Credit(advantages, returns)
