"""Divergences between a teacher's and a student's distribution of the next token.

Invariant: both are log-probabilities over the same categories, which cover everything: the last
axis sums to 1. Where only a teacher's k likeliest tokens are known, a last category holds the
rest. By the data-processing inequality that gives a lower bound of the whole divergence, which is
0 only where both agree on all categories. The teacher carries no gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

DivergenceName = Literal["forward", "reverse", "jensen_shannon"]
Divergence = Callable[[jax.Array, jax.Array], jax.Array]
"""`(teacher, student)`, f32[..., K] each, gives f32[...], in nats."""


def forward_kl(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """Compute `KL(teacher || student) = sum_v p_v (log p_v - log q_v)`: covers all of p.

    Args:
      teacher: f32[..., K], log p, a constant.
      student: f32[..., K], log q.

    Example:
      >>> half = jnp.log(jnp.array([0.5, 0.5]))
      >>> float(forward_kl(half, half))
      0.0

    Reference: Hinton et al. 2015, "Distilling the knowledge in a neural network", section 2.
    """
    teacher = jax.lax.stop_gradient(teacher)
    return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)


def reverse_kl(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """Compute `KL(student || teacher) = sum_v q_v (log q_v - log p_v)`: seeks a mode of p.

    Reference: Gu et al. 2023, MiniLLM, equation 1.
    """
    teacher = jax.lax.stop_gradient(teacher)
    return jnp.sum(jnp.exp(student) * (student - teacher), axis=-1)


def jensen_shannon(teacher: jax.Array, student: jax.Array, *, weight: float = 0.5) -> jax.Array:
    """Compute `b KL(p || m) + (1 - b) KL(q || m)` with `m = b p + (1 - b) q`: bounded.

    Args:
      weight: b in (0, 1), of the teacher. Divided by b it tends to the forward divergence for
        b → 0; divided by 1 - b, to the reverse one for b → 1.

    Reference: Agarwal et al. 2023, "On-policy distillation of language models" (GKD), equation 1.
    """
    teacher = jax.lax.stop_gradient(teacher)
    mixture = jnp.logaddexp(teacher + jnp.log(weight), student + jnp.log1p(-weight))
    of_teacher = jnp.sum(jnp.exp(teacher) * (teacher - mixture), axis=-1)
    of_student = jnp.sum(jnp.exp(student) * (student - mixture), axis=-1)
    return weight * of_teacher + (1.0 - weight) * of_student


def divergence(name: DivergenceName, *, weight: float = 0.5) -> Divergence:
    """Give the function of a name; `weight` is that of `jensen_shannon`."""
    table: dict[str, Divergence] = {
        "forward": forward_kl,
        "reverse": reverse_kl,
        "jensen_shannon": partial(jensen_shannon, weight=weight),
    }
    return table[name]
