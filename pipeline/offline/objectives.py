"""What one microbatch of offline data adds to the loss, and what it measures.

Invariant: losses are divided by numbers of the whole batch, so they and their gradients add up
to the same however the batch was split, packed, padded and ordered. Nothing outside the loss mask
reaches a loss, a measurement or a gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..algorithms.distillation import Divergence
from ..algorithms.inputs import Diagnostics
from ..algorithms.preferences import dpo_loss, ipo_loss, kto_loss, orpo_loss
from ..algorithms.reductions import Measured, keep, masked_sum
from ..algorithms.sequences import sum_to_go
from ..learner.logprobs import Forward, row_logprobs, run_rows
from ..learner.state import Params
from ..learner.top_k import logprobs_of, ranked_logprobs, top_tokens
from ..types import TrainBatch
from .config import PreferenceConfig


class Counts(NamedTuple):
    """How much of the whole batch counts, i32[] each: tokens, better and worse answers."""

    tokens: jax.Array
    chosen: jax.Array
    rejected: jax.Array


class Piece(NamedTuple):
    """One microbatch.

    Attributes:
      rows: arrays [R, T].
      counted: bool[R, T], the tokens that a loss is about.
      chosen: i32[N], as in `OfflineBatch`.
      rejected: i32[N].
      ref_logprobs: f32[R, T], of the reference policy; anything where the loss uses none.
      baseline: f32[], see `kto_baseline`; anything where the loss uses none.
    """

    rows: TrainBatch
    counted: jax.Array
    chosen: jax.Array
    rejected: jax.Array
    ref_logprobs: jax.Array
    baseline: jax.Array


Objective = Callable[[Params, Any, Piece, Counts], tuple[jax.Array, Diagnostics]]
"""`(params, teacher's params or None, piece, counts of the batch)` gives the piece's part of the
batch's loss, f32[], and measurements, summarised as their names say (`reductions.sums`)."""


def sft_objective(
    params: Params, _teacher: None, piece: Piece, counts: Counts, *, forward: Forward
) -> tuple[jax.Array, Diagnostics]:
    """Imitate: the mean over the batch's tokens of `-log pi(t)`."""
    logprobs, entropy = row_logprobs(
        params, piece.rows, forward=forward, temperature=1.0, counted=piece.counted
    )
    loss = masked_sum(-logprobs, piece.counted) / _at_least_one(counts.tokens)
    return loss, {"entropy": Measured(entropy, piece.counted)}


def sft_measurement(
    params: Params, _teacher: None, piece: Piece, counts: Counts, *, forward: Forward
) -> tuple[jax.Array, Diagnostics]:
    """Measure the same loss, and `token_accuracy`: how often the token is the likeliest one."""
    rows = piece.rows
    hidden, head = run_rows(params, rows, forward=forward)
    logprobs, best = ranked_logprobs(hidden, head, rows.tokens)
    loss = masked_sum(-logprobs, piece.counted) / _at_least_one(counts.tokens)
    return loss, {"token_accuracy": Measured(best.astype(jnp.float32), piece.counted)}


def distill_objective(
    params: Params,
    teacher: Params,
    piece: Piece,
    counts: Counts,
    *,
    forward: Forward,
    teach: Callable[[Params, TrainBatch], Any],
    divergence: Divergence,
    temperature: float,
) -> tuple[jax.Array, Diagnostics]:
    """Follow a teacher: the mean over the batch's tokens of a divergence from it.

    Args:
      teach: see `teacher_tokens`.

    Returns:
      Also `teacher_mass`, the mean probability of the tokens that the teacher names.
    """
    rows = piece.rows
    named = teach(teacher, rows)
    hidden, head = run_rows(params, rows, forward=forward)
    student = logprobs_of(hidden, head, named.ids, temperature=temperature)
    wide = piece.counted[..., None]
    apart = divergence(keep(named.logprobs, wide), keep(student, wide))
    loss = masked_sum(apart, piece.counted) / _at_least_one(counts.tokens)
    mass = 1.0 - jnp.exp(named.logprobs[..., -1])
    return loss, {"teacher_mass": Measured(mass, piece.counted)}


def teacher_tokens(
    teacher: Params,
    rows: TrainBatch,
    *,
    forward: Forward,
    k: int,
    entries: int,
    temperature: float,
) -> Any:
    """Ask a teacher for its likeliest tokens; see `top_tokens`."""
    hidden, head = run_rows(teacher, rows, forward=forward)
    return top_tokens(hidden, head, k=k, temperature=temperature, entries=entries)


def preference_objective(
    params: Params,
    _teacher: None,
    piece: Piece,
    counts: Counts,
    *,
    forward: Forward,
    config: PreferenceConfig,
) -> tuple[jax.Array, Diagnostics]:
    """Prefer the better answers: the mean over pairs, or over answers, of a preference's loss.

    Returns:
      Also `chosen_logprob` and `rejected_logprob` (sums, or means per token, as the loss takes
      them), `chosen_reward` and `rejected_reward` (beta times the distance from the reference;
      without one, beta times the logprob); for pairs `accuracy`, how often the better answer has
      the higher reward, and `margin`, by how much; for single answers `accuracy`, how often the
      reward is on the label's side of the baseline.
    """
    logprobs, _ = row_logprobs(
        params, piece.rows, forward=forward, temperature=1.0, counted=piece.counted
    )
    policy = _answers(logprobs, piece, mean=config.by_mean)
    reference = _answers(jax.lax.stop_gradient(piece.ref_logprobs), piece, mean=config.by_mean)
    judge = _single_losses if config.loss == "kto" else _pair_losses
    loss, measured = judge(policy, reference, piece, counts, config=config)
    there = piece.chosen >= 0, piece.rejected >= 0
    for name, scores, base, mask in zip(
        ("chosen", "rejected"), policy, reference, there, strict=True
    ):
        reward = config.beta * (scores - base if config.needs_reference else scores)
        measured[f"{name}_logprob"] = Measured(scores, mask)
        measured[f"{name}_reward"] = Measured(reward, mask)
    return loss, measured


def _pair_losses(
    policy: tuple[jax.Array, jax.Array],
    reference: tuple[jax.Array, jax.Array],
    piece: Piece,
    counts: Counts,
    *,
    config: PreferenceConfig,
) -> tuple[jax.Array, Diagnostics]:
    there = (piece.chosen >= 0) & (piece.rejected >= 0)
    margins = keep(policy[0] - policy[1], there)
    before = keep(reference[0] - reference[1], there)
    if config.loss == "dpo":
        smoothing = config.label_smoothing
        losses = dpo_loss(margins, before, beta=config.beta, label_smoothing=smoothing)
    elif config.loss == "ipo":
        losses = ipo_loss(margins, before, beta=config.beta)
    else:
        losses = orpo_loss(*policy, beta=config.beta)
    gained = config.beta * (margins - before if config.needs_reference else margins)
    return masked_sum(losses, there) / _at_least_one(counts.chosen), {
        "accuracy": Measured((gained > 0).astype(jnp.float32), there),
        "margin": Measured(gained, there),
    }


def _single_losses(
    policy: tuple[jax.Array, jax.Array],
    reference: tuple[jax.Array, jax.Array],
    piece: Piece,
    counts: Counts,
    *,
    config: PreferenceConfig,
) -> tuple[jax.Array, Diagnostics]:
    there = jnp.stack([piece.chosen >= 0, piece.rejected >= 0])
    good = jnp.broadcast_to(jnp.array([[True], [False]]), there.shape)
    rewards = keep(jnp.stack(policy) - jnp.stack(reference), there)
    weights = jnp.where(good, config.desirable_weight, config.undesirable_weight)
    losses = kto_loss(rewards, good, piece.baseline, beta=config.beta, weight=weights)
    answers = _at_least_one(counts.chosen + counts.rejected)
    right = (rewards > piece.baseline) == good
    return masked_sum(losses, there) / answers, {
        "accuracy": Measured(right.astype(jnp.float32), there)
    }


def _answers(logprobs: jax.Array, piece: Piece, *, mean: bool) -> tuple[jax.Array, jax.Array]:
    """Give f32[N] of the better and the worse answers: the sum over their tokens, or the mean."""
    ids = piece.rows.segment_ids
    sums = sum_to_go(keep(logprobs, piece.counted), ids).reshape(-1)
    lengths = sum_to_go(piece.counted.astype(jnp.float32), ids).reshape(-1)
    scores = sums / jnp.maximum(lengths, 1.0) if mean else sums

    def at(places: jax.Array) -> jax.Array:
        return keep(scores[jnp.maximum(places, 0)], places >= 0)

    return at(piece.chosen), at(piece.rejected)


def _at_least_one(number: jax.Array) -> jax.Array:
    return jnp.maximum(number, 1).astype(jnp.float32)
