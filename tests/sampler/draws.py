"""What a draw has to be: an oracle in plain Python and float64, and rows that all differ."""

from collections import Counter
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.sampler.options import (
    DrawOptions,
    OptionSizes,
    neutral_options,
    write_options,
)
from headrace.pipeline.sampler.penalties import count_tokens
from headrace.pipeline.sampling import PLAIN, Sampling

Floats = NDArray[np.float64]
MAX_BIAS, MAX_TOP = 3, 7
WINDOW = 20

count_jit = jax.jit(count_tokens, static_argnames="vocab_size")


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a draw: its logits, what it asks for and its tokens so far."""

    logits: NDArray[np.float32]
    sampling: Sampling = PLAIN
    temperature: float = 1.0
    prompt: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


def sizes_for(vocab: int) -> OptionSizes:
    return OptionSizes(vocab, MAX_BIAS, MAX_TOP, token_masks=True)


def options_for(rows: list[Row]) -> DrawOptions:
    options = neutral_options(len(rows), sizes_for(len(rows[0].logits)))
    for index, row in enumerate(rows):
        write_options(options, index, row.sampling, temperature=row.temperature)
    return options


def counts_of(rows: list[Row]) -> jax.Array:
    """Counts of the rows' tokens, between entries that don't count."""
    tokens = np.full((len(rows), WINDOW), 0, np.int32)
    valid, sampled = np.zeros((2, len(rows), WINDOW), np.bool_)
    for index, row in enumerate(rows):
        ids = row.prompt + row.sampled
        tokens[index, 1 : len(ids) + 1] = ids
        valid[index, 1 : len(ids) + 1] = True
        sampled[index, len(row.prompt) + 1 :] = True
    return count_jit(tokens, valid, sampled, vocab_size=len(rows[0].logits))


def adjusted_logits(row: Row) -> Floats:
    """Penalties, biases and allowed tokens, one token after the other."""
    logits = row.logits.astype(np.float64)
    asked = row.sampling
    for token in set(row.prompt) | set(row.sampled):
        if logits[token] > 0:
            logits[token] /= np.float32(asked.repetition_penalty)
        else:
            logits[token] *= np.float32(asked.repetition_penalty)
    for token, times in Counter(row.sampled).items():
        logits[token] -= np.float32(asked.presence_penalty)
        logits[token] -= times * np.float32(asked.frequency_penalty)
    for token, bias in asked.logit_bias:
        logits[token] += np.float32(bias)
    if asked.allowed_tokens is not None:
        banned = set(range(len(logits))) - set(asked.allowed_tokens)
        logits[list(banned)] = -np.inf
    return logits


@dataclass(frozen=True, eq=False)
class Left:
    """The tokens left of a distribution; `margin` says how near another answer was."""

    ids: set[int]
    margin: float


def left_of(scaled: Floats, asked: Sampling) -> Left:
    """Cut by top-k, then top-p of what is left, then min-p: a walk down the sorted tokens."""
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    order = [token for token in order if scaled[token] > -np.inf]
    mass = {token: float(np.exp(scaled[token] - scaled[order[0]])) for token in order}
    margins = [1.0]
    if asked.top_k:
        order = order[: asked.top_k]
    if asked.top_p < 1:
        goal = float(np.float32(asked.top_p)) * sum(mass[token] for token in order)
        before, kept = 0.0, []
        for token in order:
            if kept and before >= goal:
                break
            kept.append(token)
            before += mass[token]
            margins.append(abs(before / goal - 1))
        order = kept
    if asked.min_p:
        share = float(np.float32(asked.min_p))
        margins += [abs(mass[token] / share - 1) for token in order[1:]]
        order = [token for token in order if mass[token] >= share or token == order[0]]
    return Left(set(order), min(margins))


def behaviour(row: Row) -> tuple[Floats, float]:
    """The probabilities with which a row's token is really drawn; and the margin of `Left`."""
    logits = adjusted_logits(row)
    probability = np.zeros(len(logits))
    if row.temperature == 0:
        probability[int(logits.argmax())] = 1
        return probability, 1.0
    scaled = logits / np.float32(row.temperature)
    left = left_of(scaled, row.sampling)
    ids = sorted(left.ids)
    probability[ids] = np.exp(scaled[ids] - scaled[ids].max())
    return probability / probability.sum(), left.margin


def log_softmax(row: Row) -> Floats:
    """The distribution that the learner recomputes: the temperature's, nothing else."""
    scaled = row.logits.astype(np.float64) / np.float32(row.temperature or 1.0)
    scaled -= scaled.max()
    return np.asarray(scaled - np.log(np.exp(scaled).sum()))


def random_logits(rng: np.random.Generator, vocab: int) -> NDArray[np.float32]:
    """Logits of a random kind: real numbers, many equal ones, flat ones, extreme ones."""
    kind = rng.integers(5)
    if kind == 0:
        logits = 3 * rng.standard_normal(vocab)
    elif kind == 1:
        logits = rng.integers(-3, 4, vocab) / 2  # exact in float32, with many ties and -0
        logits[logits == 0] *= rng.choice([-1.0, 1.0])
    elif kind == 2:
        logits = 0.1 * rng.standard_normal(vocab)
    elif kind == 3:
        logits = rng.choice([-3e4, 0.0, 2.0, 3e4], vocab)
    else:
        logits = np.where(rng.random(vocab) < 0.8, -np.inf, rng.standard_normal(vocab))
        logits[rng.integers(vocab)] = 1
    return logits.astype(np.float32)


def random_cuts(rng: np.random.Generator, vocab: int) -> Sampling:
    """Each of the cuts is asked for in half of the rows."""
    sampling = PLAIN
    if rng.random() < 0.5:
        sampling = replace(sampling, top_k=int(rng.integers(1, vocab + 3)))
    if rng.random() < 0.5:
        top_p = rng.choice([1e-9, rng.uniform(0.05, 0.999), rng.uniform(0.9, 0.99)])
        sampling = replace(sampling, top_p=float(top_p))
    if rng.random() < 0.5:
        sampling = replace(sampling, min_p=float(rng.uniform(0, 1) ** 3))
    return sampling


def random_row(rng: np.random.Generator, vocab: int) -> Row:
    """A row that asks for a random subset of everything."""
    sampling = random_cuts(rng, vocab)
    logits = random_logits(rng, vocab)
    if rng.random() < 0.5:
        sampling = replace(
            sampling,
            repetition_penalty=float(rng.choice([1.0, 0.5, 2.0])),
            presence_penalty=float(rng.choice([0.0, 0.25, -1.0])),
            frequency_penalty=float(rng.choice([0.0, 0.5, -0.25])),
        )
    if rng.random() < 0.4:
        ids = rng.choice(vocab, min(vocab, int(rng.integers(1, MAX_BIAS + 1))), replace=False)
        bias = tuple((int(token), float(rng.choice([-4.0, 1.5, 30.0]))) for token in ids)
        sampling = replace(sampling, logit_bias=bias)
    if rng.random() < 0.4:
        allowed = rng.choice(vocab, int(rng.integers(1, vocab + 1)), replace=False)
        possible = [int(token) for token in allowed if logits[token] > -np.inf]
        sampling = replace(sampling, allowed_tokens=tuple(possible) or (int(logits.argmax()),))
    few = max(1, vocab // 3)  # so that tokens repeat
    return Row(
        logits,
        sampling,
        temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0], p=[0.1, 0.3, 0.3, 0.3])),
        prompt=rng.integers(0, few, rng.integers(0, 9)).tolist(),
        sampled=rng.integers(0, few, rng.integers(0, 9)).tolist(),
    )
