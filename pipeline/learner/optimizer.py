"""The learner's settings and its optimizer: AdamW after clipping by the global norm."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from ..errors import check
from .precision import ComputeType


@dataclass(frozen=True)
class LearnerConfig:
    """How a batch becomes an update."""

    learning_rate: float = 1e-6
    """Of AdamW; constant between warm-up and decay."""
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises linearly from 0."""
    decay_share: float = 0.0
    """Share of the run's optimizer steps, its last ones, over which the rate falls to 0."""
    epochs: int = 1
    """Optimizer steps on each batch."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    weight_decay: float = 0.0
    """Decoupled weight decay; 0 is usual in RL."""
    beta1: float = 0.9
    """Adam's decay of the gradient's mean."""
    beta2: float = 0.999
    """Adam's decay of the gradient's square."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    compute_type: ComputeType = "float32"
    """In which the model computes; parameters, gradients and the optimizer stay float32."""
    microbatch_rows: int = 16
    """Packed rows that go through the model at once: bounds memory."""
    row_tokens: int = 512
    """Tokens of a packed row; at least the longest episode."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "adam_epsilon"):
            value = getattr(self, name)
            check(value > 0, f"learner.{name}", value, "> 0 and finite")
        for name, lowest in (("warmup_steps", 0), ("epochs", 1), ("microbatch_rows", 1)):
            value = getattr(self, name)
            check(value >= lowest, f"learner.{name}", value, f">= {lowest}")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            check(0 <= value < 1, f"learner.{name}", value, "in [0, 1)")
        decay = self.weight_decay
        check(decay >= 0, "learner.weight_decay", decay, ">= 0 and finite")
        check(0 <= self.decay_share <= 1, "learner.decay_share", self.decay_share, "in [0, 1]")
        check(self.row_tokens >= 2, "learner.row_tokens", self.row_tokens, ">= 2")


def make_optimizer(config: LearnerConfig, *, total_steps: int = 0) -> optax.GradientTransformation:
    """Build the optimizer: `(gradients, state, params) -> (updates, state)`, pure.

    Args:
      total_steps: optimizer steps of the run; only a decay needs it.

    Reference: Loshchilov & Hutter 2019 (AdamW), algorithm 2; Pascanu et al. 2013 (clipping).
    """
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            _learning_rate(config, total_steps),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
        ),
    )


def _learning_rate(config: LearnerConfig, total_steps: int) -> optax.ScalarOrSchedule:
    decay_steps = round(config.decay_share * total_steps)
    if config.warmup_steps == decay_steps == 0:
        return config.learning_rate

    def rate(steps_taken: jax.Array) -> jax.Array:
        # The first step already moves, with 1 / warmup_steps of the rate, and so does the last.
        step = jnp.asarray(steps_taken, jnp.float32)
        rising = (step + 1.0) / max(1, config.warmup_steps)
        falling = (total_steps - step) / (decay_steps + 1) if decay_steps else jnp.ones_like(step)
        return config.learning_rate * jnp.clip(jnp.minimum(rising, falling), 0.0, 1.0)

    return rate
