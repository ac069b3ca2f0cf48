"""The learner's settings and its optimizer: AdamW after clipping by the global norm."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from ..errors import ConfigError


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
    microbatch_rows: int = 16
    """Packed rows that go through the model at once: bounds memory."""
    row_tokens: int = 512
    """Tokens of a packed row; at least the longest episode."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "adam_epsilon"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "> 0")
        for name in ("warmup_steps", "weight_decay"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, ">= 0")
        _check("decay_share", self.decay_share, 0 <= self.decay_share <= 1, "in [0, 1]")
        for name in ("beta1", "beta2"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("epochs", "microbatch_rows"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, ">= 1")
        _check("row_tokens", self.row_tokens, self.row_tokens >= 2, ">= 2")


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


def _check(name: str, value: float, allowed: bool, condition: str) -> None:
    if not allowed:
        flag = name.replace("_", "-")
        raise ConfigError(f"learner.{name} must be {condition}, got {value}; set --learner.{flag}")
