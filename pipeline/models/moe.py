"""A mixture of experts in place of a feed-forward layer: a router sends each token to k of them.

The learner sorts tokens by expert and multiplies each group by its expert's matrices. The sampler
multiplies every token by every expert, and the weights of those not chosen are 0: so how many
neighbours chose an expert changes nothing of a row, bit for bit. That costs E/k times the
products; decoding reads all weights anyway.

Sampler and learner round differently and so choose differently where two experts are nearly
alike. A choice that the sampler recorded can be replayed; its weights are always the router's own.

Reference: Ma et al., Stabilizing MoE Reinforcement Learning by Aligning Training and
Inference Routers (2025), for the replay.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..types import NOT_RECORDED
from .frozen import plain_experts
from .gated import gated
from .matrices import multiply, with_plain
from .parameters import Params
from .products import FEATURES_LAST, Form, kept
from .traits import Activation, ExpertTraits


class Routes(NamedTuple):
    """Where tokens go.

    Attributes:
      experts: i32[R, T, k], in the order of the router's shares where nothing was recorded.
      weights: f32[R, T, k], of what each expert gives.
    """

    experts: jax.Array
    weights: jax.Array


def mixture(
    x: jax.Array,
    weights: Params,
    traits: ExpertTraits,
    *,
    activation: Activation,
    form: Form,
    recorded: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Send each token through its experts.

    Args:
      x: the normalised stream, in the form's order of axes.
      weights: of one layer.
      recorded: i32[R, T, k], which experts to take; a token with `NOT_RECORDED` goes where the
        router sends it, as all do without.

    Returns:
      What to add to the stream, and the experts that were taken, i32[R, T, k].
    """
    routes = route(_router_logits(x, weights, form), traits, recorded)
    run = _sorted_by_expert if form is FEATURES_LAST else _all_experts
    return run(x, weights, routes, activation), routes.experts


def route(logits: jax.Array, traits: ExpertTraits, recorded: jax.Array | None = None) -> Routes:
    """Choose k experts for each token.

    Args:
      logits: f[R, T, E], the router's.
      recorded: see `mixture`.

    Example:
      >>> routes = route(jnp.array([[[0.0, 2.0, 1.0]]]), ExpertTraits(count=3, per_token=2))
      >>> routes.experts.tolist(), round(float(routes.weights.sum()), 6)
      ([[[1, 2]]], 1.0)
    """
    shares = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    _, experts = lax.top_k(shares, traits.per_token)
    if recorded is not None:
        experts = jnp.where(recorded == NOT_RECORDED, experts, recorded.astype(jnp.int32))
    weights = jnp.take_along_axis(shares, experts, axis=-1)
    if traits.normalize:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routes(experts, weights)


def _router_logits(x: jax.Array, weights: Params, form: Form) -> jax.Array:
    logits = multiply(form.ffn, x, weights["router"])
    return logits if form is FEATURES_LAST else kept(logits).transpose(1, 2, 0)


def _sorted_by_expert(
    x: jax.Array, weights: Params, routes: Routes, activation: Activation
) -> jax.Array:
    """Run the learner's stream [R, T, D]: each expert's tokens stand together."""
    count, width = weights["router"].shape[-1], x.shape[-1]
    per_token = routes.experts.shape[-1]
    experts = routes.experts.reshape(-1)
    order = jnp.argsort(experts, stable=True)
    sizes = jnp.bincount(experts, length=count).astype(jnp.int32)
    # A token stands once for each of its experts; so nothing is added up in an open order.
    tokens = _permuted(jnp.repeat(x.reshape(-1, width), per_token, axis=0), order)

    def by_group(x: jax.Array, matrices: jax.Array) -> jax.Array:
        return lax.ragged_dot(x, matrices, sizes)

    run = partial(with_plain, by_group, widen=plain_experts)
    gate, up = (run(tokens, weights[name]) for name in ("expert_gate", "expert_up"))
    down = run(gated(activation, gate, up), weights["expert_down"])
    given = _permuted(down, jnp.argsort(order)).reshape(*routes.experts.shape, width)
    return (given * routes.weights[..., None].astype(given.dtype)).sum(axis=-2)


def _permuted(rows: jax.Array, order: jax.Array) -> jax.Array:
    permuted: jax.Array = rows.at[order].get(mode="promise_in_bounds", unique_indices=True)
    return permuted


def _all_experts(
    x: jax.Array, weights: Params, routes: Routes, activation: Activation
) -> jax.Array:
    """Run the sampler's stream [D, R, T] through every expert: [E, F, R, T] in between."""
    count = weights["expert_gate"].shape[0]
    chosen = jax.nn.one_hot(routes.experts, count, dtype=jnp.float32)  # [R, T, k, E]
    shares = (chosen * routes.weights[..., None]).sum(axis=-2).transpose(2, 0, 1)[:, None]
    gate, up = (
        multiply("efd,drt->efrt", x, weights[name]) for name in ("expert_gate", "expert_up")
    )
    hidden = gated(activation, gate, up)
    weighted = jnp.where(shares == 0, 0, hidden * shares.astype(hidden.dtype))
    return multiply("def,efrt->drt", weighted.astype(x.dtype), weights["expert_down"])
