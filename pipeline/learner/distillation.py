"""On-policy distillation: a frozen teacher says how likely it found what the student sampled.

Invariant: computed once a batch, before its first epoch, from the policy at the start of the
update; a constant from then on, and nothing of the teacher is ever trained.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from ..algorithms.reductions import keep
from ..errors import check
from ..models.model import Forward
from ..types import TrainBatch
from .logprobs import batch_logprobs, counted_tokens
from .state import Params
from .step import Metrics


@dataclass(frozen=True)
class DistillationConfig:
    """A teacher whose behaviour the policy takes on, on what it samples itself.

    Raises:
      ConfigError: for an impossible number, or an empty name.
    """

    teacher: str | None = None
    """Another policy, named as for policy.path, or a run directory; with the same tokenizer. None:
    there is no teacher."""
    coefficient: float = 1.0
    """Of the reverse KL divergence from the teacher, per token; > 0."""
    rewards: bool = False
    """Add the rewards' advantages; otherwise only the teacher teaches."""

    def __post_init__(self) -> None:
        check(self.teacher != "", "distillation.teacher", "", "the name of a policy")
        coefficient = self.coefficient
        check(coefficient > 0, "distillation.coefficient", coefficient, "> 0 and finite")


@dataclass(frozen=True, eq=False)
class Teacher:
    """A policy that is asked and never trained.

    Attributes:
      forward: its model, which may be another one than the student's.
      params: its parameters.
    """

    forward: Forward
    params: Params = field(repr=False)


def distilled(
    params: Params,
    batch: TrainBatch,
    old_logprobs: jax.Array,
    *,
    forward: Forward,
    config: DistillationConfig,
    temperature: float = 1.0,
) -> tuple[jax.Array, Metrics]:
    """Turn the teacher's opinion of the sampled tokens into their advantages.

    `A_t = -c (log pi_old(t) - log pi_teacher(t))`, beside the rewards' advantages or instead
    of them. Its policy gradient descends `KL(pi || pi_teacher)` of each next token, on the
    prefixes that the student visits; what a token leads to later does not count.

    Args:
      params: the teacher's.
      old_logprobs: f32[A, R, T], of the policy at the start of the update.

    Returns:
      f32[A, R, T] advantages, and `teacher_kl`: the mean of `log pi_old - log pi_teacher`, an
      unbiased estimate of the divergence, in nats per token.

    Reference: Lu & Thinking Machines 2025, "On-policy distillation"; Agarwal et al. 2024, GKD,
      equation 4 with the reverse KL and on-policy data only.
    """
    mask = counted_tokens(batch)
    of_teacher = batch_logprobs(
        params, batch._replace(experts=None), forward=forward, temperature=temperature
    )
    gap = keep(old_logprobs, mask) - keep(of_teacher, mask)
    own = keep(batch.advantages, mask) if config.rewards else jnp.zeros_like(gap)
    tokens = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
    return own - config.coefficient * gap, {"teacher_kl": jnp.sum(gap) / tokens}
