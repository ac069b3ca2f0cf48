"""Losses and gradients of packed preference data are those of the sequences one by one.

The oracle scores one sequence at a time in float64; gradients are compared between ways to pack.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headrace.pipeline.algorithms.distillation import divergence
from headrace.pipeline.algorithms.losses import sft_loss
from headrace.pipeline.groups.packing import PackItem
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.state import init_state
from headrace.pipeline.learner.step import train_step
from headrace.pipeline.offline.batch import (
    BatchShape,
    Judged,
    judged_batch,
    mismatched_rows,
    plain_batch,
)
from headrace.pipeline.offline.config import PreferenceConfig
from headrace.pipeline.offline.objectives import (
    distill_objective,
    preference_objective,
    sft_measurement,
    sft_objective,
    teacher_tokens,
)
from headrace.pipeline.offline.step import Fixed, measure, measure_baseline, offline_step
from tests.learner.toy import VOCAB, oracle_logprobs, quick_jit, toy_forward, toy_items, toy_params

SHAPE = BatchShape(units=8, rows=4, row_tokens=12)
SGD = optax.sgd(1.0)
PARAMS, OTHER = toy_params(0), toy_params(1)
CONFIGS = {
    "dpo": PreferenceConfig("dpo", beta=0.3, label_smoothing=0.1),
    "ipo": PreferenceConfig("ipo", beta=0.4),
    "orpo": PreferenceConfig("orpo", beta=0.5),
    "kto": PreferenceConfig("kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.5),
}


def pairs(seed=0):
    items = toy_items((5, 9, 3, 7, 4, 6, 8, 2, 11, 4), seed)
    return [Judged(*items[place : place + 2]) for place in range(0, 10, 2)]


def singles(seed=0):
    items = toy_items((5, 9, 3, 7, 4, 6, 8), seed)
    return [Judged(it, None) if place % 3 else Judged(None, it) for place, it in enumerate(items)]


@partial(quick_jit, static_argnames="name")
def gradient(batch, ref, baseline, *, name):
    """The gradient, as what a step of size 1 takes off, with the metrics."""
    objective = partial(preference_objective, forward=toy_forward, config=CONFIGS[name])
    state, metrics = offline_step(
        init_state(PARAMS, SGD), batch, Fixed(ref, baseline), objective=objective, optimizer=SGD
    )
    return jax.tree.map(jnp.subtract, PARAMS, state.params), metrics


score = quick_jit(partial(batch_logprobs, forward=toy_forward))


def learn(units, name, shape=SHAPE, baseline=0.25):
    batch = judged_batch(units, shape)
    ref = score(OTHER, batch.rows)
    return gradient(batch, ref, jnp.array(baseline, jnp.float32), name=name)


def answer(params, item, mean):
    counted = item.loss_mask & (np.arange(len(item.tokens)) > 0)
    scores = oracle_logprobs(params, item)[0][counted]
    return scores.mean() if mean else scores.sum()


def sigma(x):
    return 1 / (1 + np.exp(-x))


def oracle(units, name, baseline=0.25):
    config, losses = CONFIGS[name], []
    for unit in units:
        sides = {}
        for side in ("chosen", "rejected"):
            item = getattr(unit, side)
            if item is not None:
                sides[side] = [answer(p, item, config.by_mean) for p in (PARAMS, OTHER)]
        if name == "kto":
            for side, (policy, ref) in sides.items():
                sign = 1 if side == "chosen" else -1
                weight = 1.5 if side == "chosen" else 0.5
                gained = 0.2 * sign * (policy - ref - baseline)
                losses.append(weight * (1 - sigma(gained)))
            continue
        (c, ref_c), (r, ref_r) = sides["chosen"], sides["rejected"]
        h = c - ref_c - r + ref_r
        odds = [np.exp(x) / (1 - np.exp(x)) for x in (c, r)] if name == "orpo" else [1, 1]
        losses.append(
            {
                "dpo": -0.9 * np.log(sigma(0.3 * h)) - 0.1 * np.log(sigma(-0.3 * h)),
                "ipo": (h - 1 / 0.8) ** 2,
                "orpo": -c - 0.5 * np.log(sigma(np.log(odds[0] / odds[1]))),
            }[name]
        )
    return np.mean(losses)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_of_packed_answers_is_the_papers(name):
    units = units_of(name)
    _, metrics = learn(units, name)
    np.testing.assert_allclose(metrics["loss"], oracle(units, name), rtol=2e-5)
    assert 0 <= metrics["accuracy"] <= 1


def units_of(name):
    return singles() + pairs()[:1] if name == "kto" else pairs()


@pytest.mark.parametrize("name", CONFIGS)
def test_law_12_order_and_split_change_no_gradient(name):
    units = units_of(name)
    expected, metrics = learn(units, name)
    found, others = learn(units[2:] + units[:2], name)
    few_rows = BatchShape(SHAPE.units, 2, SHAPE.row_tokens)
    split, _ = learn(units, name, few_rows)
    for one in (found, split):
        for key in expected:
            np.testing.assert_allclose(one[key], expected[key], atol=3e-6)
    for key, value in metrics.items():
        np.testing.assert_allclose(others[key], value, atol=1e-5)


def poisoned(item: PackItem | None) -> PackItem | None:
    """The same sequence with other numbers where nothing counts."""
    if item is None:
        return None
    logprobs = np.where(item.loss_mask, item.rollout_logprobs, np.nan).astype(np.float32)
    return PackItem(item.tokens, item.loss_mask, logprobs, item.advantages * 7)


@pytest.mark.parametrize("name", CONFIGS)
def test_law_11_what_is_masked_reaches_nothing(name):
    units = units_of(name)
    batch = judged_batch(units, SHAPE)
    ref = jnp.where(batch.rows.loss_mask, score(OTHER, batch.rows), jnp.nan)
    sides = ((poisoned(unit.chosen), poisoned(unit.rejected)) for unit in units)
    batch = judged_batch([Judged(*both) for both in sides], SHAPE)
    found, metrics = gradient(batch, ref, jnp.array(0.25), name=name)
    expected, clean = learn(units, name)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])
    assert metrics == clean


def test_the_better_answers_gain_on_the_worse_ones():
    units = pairs()
    ways, metrics = learn(units, "dpo")
    params = jax.tree.map(lambda p, g: p - 0.05 * g, PARAMS, ways)

    def margin(p):
        return np.mean([answer(p, u.chosen, 0) - answer(p, u.rejected, 0) for u in units])

    assert metrics["skipped"] == 0
    assert margin(params) > margin(PARAMS)


def test_the_baseline_is_the_mean_log_ratio_of_answers_to_other_prompts():
    units = pairs()
    rows = mismatched_rows(units, SHAPE)
    items = [item for unit in units for item in unit.items]
    expected = []
    for prompt, spoken in zip(items[1:] + items[:1], items, strict=True):
        before, behind = prompt.loss_mask.argmax(), spoken.loss_mask.argmax()
        tokens = np.concatenate([prompt.tokens[:before], spoken.tokens[behind:]])[:12]
        mask = np.concatenate([prompt.loss_mask[:before], spoken.loss_mask[behind:]])[:12]
        numbers = np.zeros(len(tokens), np.float32)
        item = PackItem(tokens, mask, numbers, numbers)
        expected.append(answer(PARAMS, item, 0) - answer(OTHER, item, 0))
    found = measure_baseline(score(PARAMS, rows), score(OTHER, rows), jax.device_put(rows))
    np.testing.assert_allclose(found, max(0.0, np.mean(expected)), rtol=1e-4)
    back = measure_baseline(score(OTHER, rows), score(PARAMS, rows), jax.device_put(rows))
    np.testing.assert_allclose(back, max(0.0, -np.mean(expected)), rtol=1e-4)


def test_imitation_is_the_step_that_rl_takes():
    items = [
        PackItem(it.tokens, it.loss_mask, it.rollout_logprobs, it.loss_mask.astype(np.float32))
        for it in toy_items()
    ]
    batch = plain_batch(items, SHAPE)
    ours = partial(sft_objective, forward=toy_forward)
    state, metrics = quick_jit(partial(offline_step, objective=ours, optimizer=SGD))(
        init_state(PARAMS, SGD), batch, Fixed()
    )
    step = partial(train_step, forward=toy_forward, loss=sft_loss, optimizer=SGD)
    expected, theirs = quick_jit(step)(init_state(PARAMS, SGD), batch.rows)
    for key in PARAMS:
        np.testing.assert_allclose(state.params[key], expected.params[key], rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], theirs["loss"], rtol=1e-6)
    measured = partial(sft_measurement, forward=toy_forward)
    loss, counts, found = quick_jit(partial(measure, objective=measured))(PARAMS, batch, Fixed())
    np.testing.assert_allclose(loss, theirs["loss"], rtol=1e-6)
    assert int(counts.tokens) == int(theirs["tokens"])
    assert found["token_accuracy"]["count"] == theirs["tokens"]


@pytest.mark.parametrize(
    "name",
    [
        "jensen_shannon",
        pytest.param("forward", marks=pytest.mark.slow),
        pytest.param("reverse", marks=pytest.mark.slow),
    ],
)
def test_distillation_of_the_whole_vocabulary_is_the_divergence_and_of_oneself_is_0(name):
    items = toy_items()
    batch = plain_batch(items, SHAPE)

    def objective(k):
        teach = partial(teacher_tokens, forward=toy_forward, k=k, entries=VOCAB, temperature=1.0)
        return partial(
            distill_objective,
            forward=toy_forward,
            teach=teach,
            divergence=divergence(name),
            temperature=1.0,
        )

    def loss_of(teacher, k):
        loss, _, found = measure(PARAMS, batch, Fixed(teacher=teacher), objective=objective(k))
        return loss, found["teacher_mass"]["total"] / found["teacher_mass"]["count"]

    (whole, mass), (few, part), (same, _) = quick_jit(
        lambda: (loss_of(OTHER, VOCAB), loss_of(OTHER, 3), loss_of(PARAMS, 3))
    )()
    np.testing.assert_allclose(whole, whole_divergence(items, name), rtol=1e-4)
    np.testing.assert_allclose(mass, 1.0, rtol=1e-6)
    assert 0 < few < whole
    assert 0 < part < 1
    np.testing.assert_allclose(same, 0.0, atol=1e-6)


@pytest.mark.slow
def test_law_12_the_split_changes_no_gradient_of_a_distillation():
    teach = partial(teacher_tokens, forward=toy_forward, k=3, entries=VOCAB, temperature=1.0)
    objective = partial(
        distill_objective,
        forward=toy_forward,
        teach=teach,
        divergence=divergence("reverse"),
        temperature=1.0,
    )
    step = quick_jit(partial(offline_step, objective=objective, optimizer=SGD))
    few_rows = BatchShape(SHAPE.units, 2, SHAPE.row_tokens)
    (whole, loss), (split, same) = (
        step(init_state(PARAMS, SGD), plain_batch(toy_items(), shape), Fixed(teacher=OTHER))
        for shape in (SHAPE, few_rows)
    )
    for key, value in whole.params.items():
        assert np.abs(value - PARAMS[key]).max() > 1e-3
        np.testing.assert_allclose(split.params[key], value, atol=3e-6)
    np.testing.assert_allclose(same["loss"], loss["loss"], rtol=1e-5)


def whole_divergence(items, name):
    """The mean over counted tokens, from logits of one sequence at a time in float64."""
    apart = []
    for item in items:
        p, q = (distribution(params, item) for params in (OTHER, PARAMS))
        m = np.log((np.exp(p) + np.exp(q)) / 2)
        both = {"forward": [(p, q)], "reverse": [(q, p)], "jensen_shannon": [(p, m), (q, m)]}[name]
        each = np.mean([(np.exp(a) * (a - b)).sum(-1) for a, b in both], axis=0)
        apart += each[: len(item.tokens) - 1][item.loss_mask[1:]].tolist()
    return np.mean(apart)


def distribution(params, item):
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = p["embedding"][item.tokens] + 0.1 * np.arange(len(item.tokens))[:, None]
    mixed = np.cumsum(x, 0) / np.arange(1, len(x) + 1)[:, None]
    logits = np.tanh(x + mixed @ p["mix"]) @ p["head"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
