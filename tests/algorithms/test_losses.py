"""Every paper's loss equals a NumPy oracle, ignores what is masked, and doesn't feel packing.

The oracle is written from the papers, one sequence after the other, in float64.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms import aggregations
from headrace.pipeline.algorithms.config import (
    AlgorithmConfig,
    ClipConfig,
    ImportanceConfig,
    KlConfig,
    RewardsConfig,
)
from headrace.pipeline.algorithms.inputs import LossInputs
from headrace.pipeline.algorithms.losses import policy_loss, sft_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.errors import ConfigError
from tests.algorithms.rows import IDS, MASK, draw, sequences
from tests.learner.toy import quick_jit

EXTRAS = AlgorithmConfig(
    entropy_bonus=0.01,
    sft_coefficient=0.3,
    kl=KlConfig(0.1, "k2"),
    importance=ImportanceConfig(staleness_power=0.5, target="full"),
)
CONFIGS = {
    name: replace(config, scale_tokens=32) if config.aggregation == "fixed_scale" else config
    for name, config in PRESETS.items()
} | {"default": AlgorithmConfig(), "extras": EXTRAS}
LOSSES = {name: partial(policy_loss, config=config) for name, config in CONFIGS.items()}
LOSSES["sft"] = sft_loss
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def make_inputs(seed=0, scale=0.4):
    lags = np.random.default_rng(seed + 9).integers(0, 4, IDS.shape)
    one_each = 0.5 * draw(seed + 8, (4, 3))[np.arange(2)[:, None], IDS % 3]
    return LossInputs(
        logprobs=-1.0 + scale * draw(seed),
        entropy=1.0 + scale * draw(seed + 1),
        old_logprobs=-1.0 + scale * draw(seed + 2),
        rollout_logprobs=-1.0 + scale * draw(seed + 3),
        log_kept_mass=-0.1 * np.abs(draw(seed + 4)),
        ref_logprobs=-1.0 + scale * draw(seed + 5),
        advantages=one_each,
        lags=lags.astype(np.int32),
        loss_mask=MASK,
        segment_ids=IDS,
        counts=aggregations.count(MASK, IDS),
    )


def surrogate(config, ratio, logprobs, advantages):
    """The papers' gain of each token; the clipped weight of CISPO is a constant."""
    low, high = 1 - config.clip.low, 1 + config.clip.high
    if config.surrogate == "reinforce":
        return advantages * logprobs
    if config.surrogate == "cispo":
        return np.clip(ratio, low, high) * advantages * logprobs
    gain = np.minimum(ratio * advantages, np.clip(ratio, low, high) * advantages)
    if config.clip.dual:
        bounded = np.maximum(gain, config.clip.dual * advantages)
        gain = np.where(advantages < 0, bounded, gain)
    return gain


def level(log_ratio, name):
    logs = {"none": 0 * log_ratio, "token": log_ratio, "sequence": log_ratio.sum()}
    logs["geometric"] = log_ratio.mean()
    return np.exp(logs[name] + 0 * log_ratio)


def oracle_sequence(config, x):
    """The losses of one sequence's counted tokens, before they are aggregated."""
    guard = config.importance
    behaviour = x.rollout_logprobs - (x.log_kept_mass if guard.target == "full" else 0)
    old = x.old_logprobs
    if guard.old_logprobs == "interpolate":
        share = np.where(x.lags > 0, 1 / np.maximum(x.lags, 1), 0)
        old = share * behaviour + (1 - share) * x.logprobs
    log_ratio = x.logprobs - old
    ratio = level(log_ratio, "token" if config.ratio == "token" else "geometric")
    weights = np.minimum(level(old - behaviour, guard.weights), guard.cap)
    inside = level(old - behaviour, guard.mask)
    kept = (guard.mask == "none") | ((inside >= guard.mask_low) & (inside <= guard.mask_high))
    weights = weights * kept * (1.0 + x.lags) ** -guard.staleness_power
    loss = -weights * surrogate(config, ratio, x.logprobs, x.advantages)
    loss -= config.entropy_bonus * x.entropy
    loss -= config.sft_coefficient * (x.advantages > 0) * x.logprobs
    difference = x.logprobs - x.ref_logprobs
    k3 = np.exp(-difference) - 1 + difference
    divergences = {"k2": difference**2 / 2, "k3": k3, "k1_reward": 0}
    return loss + config.kl.coefficient * divergences[config.kl.kind]


def oracle(config, inputs):
    """The loss of the batch, as the papers aggregate it."""
    losses = []
    for place in sequences():
        arrays = [np.asarray(array, np.float64)[place] for array in inputs[:-1]]
        losses.append(oracle_sequence(config, LossInputs(*arrays, counts=None)))
    if config.aggregation == "token_mean":
        return np.concatenate(losses).mean()
    if config.aggregation == "sequence_mean":
        return np.mean([loss.mean() for loss in losses])
    scale = config.scale_tokens if config.aggregation == "fixed_scale" else 1
    return np.mean([loss.sum() / scale for loss in losses])


@partial(quick_jit, static_argnums=1)
def evaluate(inputs, loss):
    return loss(inputs)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_is_the_papers_formula(name):
    for seed in range(0, 100, 10):
        inputs = make_inputs(seed)
        found = evaluate(inputs, LOSSES[name])[0].sum()
        np.testing.assert_allclose(found, oracle(CONFIGS[name], inputs), rtol=2e-4, atol=2e-6)


def total(learnt, inputs, loss):
    logprobs, entropy = learnt
    return loss(inputs._replace(logprobs=logprobs, entropy=entropy))[0].sum()


@partial(quick_jit, static_argnums=1)
def value_and_gradients(inputs, loss):
    return jax.value_and_grad(total)((inputs.logprobs, inputs.entropy), inputs, loss)


@pytest.mark.parametrize("name", ["grpo", "dapo", "ppo_dual_clip"])
def test_the_gradient_is_the_oracle_s_slope(name):
    """Where the loss is smooth, for the losses whose oracle has the papers' gradient too."""
    inputs, config = make_inputs(3), CONFIGS[name]
    gradient = value_and_gradients(inputs, LOSSES[name])[1][0]
    direction = np.asarray(draw(77), np.float64)
    logprobs = np.asarray(inputs.logprobs, np.float64)
    up, down = (
        oracle(config, inputs._replace(logprobs=logprobs + step * direction))
        for step in (1e-6, -1e-6)
    )
    np.testing.assert_allclose((gradient * direction).sum(), (up - down) / 2e-6, rtol=2e-3)


def test_cispo_keeps_the_gradient_of_every_token():
    inputs = make_inputs(0, scale=2.0)  # far off: nearly all ratios are cut
    cispo = value_and_gradients(inputs, LOSSES["cispo"])[1][0]
    dapo = value_and_gradients(inputs, LOSSES["dapo"])[1][0]
    assert np.all(np.asarray(cispo)[MASK] != 0)
    assert np.any(np.asarray(dapo)[MASK] == 0)


@pytest.mark.parametrize("token_advantages", [False, True])
def test_gspo_and_its_token_form_differ_only_for_advantages_of_tokens(token_advantages):
    inputs = make_inputs(5)
    if token_advantages:
        inputs = inputs._replace(advantages=draw(6))
    both = [value_and_gradients(inputs, LOSSES[name])[1][0] for name in ("gspo", "gspo_token")]
    alike = np.allclose(*both, rtol=1e-4, atol=1e-7)
    assert alike != token_advantages


@every_loss
@pytest.mark.parametrize("poison", [np.nan, np.inf, -1e30, 5.0])
def test_law_11_what_is_masked_changes_no_loss_and_no_gradient(loss, poison):
    inputs = make_inputs()
    floats = {
        field: np.where(MASK, array, np.float32(poison))
        for field, array in inputs._asdict().items()
        if field != "counts" and array.dtype == np.float32
    }
    changed = inputs._replace(**floats, lags=np.where(MASK, inputs.lags, np.int32(99)))
    found, poisoned = value_and_gradients(inputs, loss), value_and_gradients(changed, loss)
    jax.tree.map(np.testing.assert_array_equal, found, poisoned)


@every_loss
def test_law_11_masked_nan_reaches_no_measurement(loss):
    inputs = make_inputs()
    changed = inputs._replace(logprobs=np.where(MASK, inputs.logprobs, np.float32(np.nan)))
    for (values, mask), (poisoned, _) in zip(
        evaluate(inputs, loss)[1].values(), evaluate(changed, loss)[1].values(), strict=True
    ):
        assert not np.any(mask & ~MASK)
        np.testing.assert_array_equal(np.where(mask, values, 0), np.where(mask, poisoned, 0))


@every_loss
def test_conformance_14_what_counts_does_change_the_loss(loss):
    inputs = make_inputs()
    changed = inputs._replace(advantages=inputs.advantages.copy())
    changed.advantages[0, 1] += 1.0
    assert evaluate(inputs, loss)[0].sum() != evaluate(changed, loss)[0].sum()


@every_loss
def test_a_sequence_s_loss_does_not_depend_on_its_place_or_neighbours(loss):
    inputs = make_inputs()
    alone = [np.zeros_like(array) for array in inputs[:-1]]
    for to, array in zip(alone, inputs[:-1], strict=True):
        to[0, 2:6], to[1, 5:] = array[0, :4], array[0, 4:9]
    moved = LossInputs(*alone, counts=inputs.counts)
    before, after = evaluate(inputs, loss)[0], evaluate(moved, loss)[0]
    np.testing.assert_allclose(after[0, 2:6], before[0, :4], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(after[1, 5:], before[0, 4:9], rtol=1e-5, atol=1e-8)


@every_loss
@pytest.mark.parametrize("extreme", [-1e4, -200.0, 0.0])
def test_conformance_21_extreme_logprobs_stay_finite(loss, extreme):
    inputs = make_inputs()
    inputs = inputs._replace(logprobs=np.full(IDS.shape, extreme, np.float32))
    value, (gradient, _) = value_and_gradients(inputs, loss)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


@every_loss
def test_conformance_17_nothing_counted_is_no_loss_and_no_gradient(loss):
    nothing = np.zeros_like(MASK)
    inputs = make_inputs()._replace(
        loss_mask=nothing, counts=aggregations.count(nothing, IDS), logprobs=np.nan * draw(0)
    )
    for found in jax.tree.leaves(value_and_gradients(inputs, loss)):
        np.testing.assert_array_equal(found, np.zeros_like(found))


def test_clipping_stops_the_gradient_only_on_the_side_that_overshoots():
    plain = partial(policy_loss, config=AlgorithmConfig())
    dual = partial(policy_loss, config=AlgorithmConfig(clip=ClipConfig(dual=3.0)))

    def gradient(ratio, advantage, loss=plain):
        one = jnp.ones((1, 1), jnp.int32)
        inputs = make_inputs()._replace(
            **dict.fromkeys(("old_logprobs", "rollout_logprobs"), jnp.zeros((1, 1))),
            **dict.fromkeys(("log_kept_mass", "ref_logprobs", "entropy"), jnp.zeros((1, 1))),
            logprobs=jnp.log(jnp.full((1, 1), ratio, jnp.float32)),
            advantages=jnp.full((1, 1), advantage, jnp.float32),
            lags=0 * one,
            loss_mask=one > 0,
            segment_ids=one,
            counts=aggregations.Counts(jnp.int32(1), jnp.int32(1)),
        )
        return float(value_and_gradients(inputs, loss)[1][0][0, 0])

    assert gradient(1.3, 1.0) == 0.0
    assert gradient(0.7, -1.0) == 0.0
    assert gradient(1.3, -1.0) > 0.0
    assert gradient(0.7, 1.0) < 0.0
    assert gradient(1.25, 1.0) < 0.0  # clip-higher: still inside
    assert gradient(3.5, -1.0) > 0.0
    assert gradient(3.5, -1.0, dual) == 0.0  # dual clip: far too likely already


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClipConfig(low=1.1), r"clip\.low must be .*got 1\.1.*--algorithm\.clip\.low"),
        (lambda: ClipConfig(high=-0.1), r"clip\.high must be >= 0.*got -0\.1"),
        (lambda: ClipConfig(dual=0.5), r"clip\.dual must be 0 or > 1, got 0\.5"),
        (lambda: AlgorithmConfig(entropy_bonus=-1.0), r"entropy_bonus must be .*got -1\.0"),
        (lambda: KlConfig(float("nan")), r"kl\.coefficient must be .*got nan"),
        (
            lambda: KlConfig(reference="base", reference_decay=0.9),
            r"kl\.reference_decay must be 1 with the base as reference",
        ),
        (lambda: KlConfig(reference_decay=0.0), r"kl\.reference_decay must be in \(0, 1\]"),
        (lambda: ImportanceConfig(cap=0.0), r"importance\.cap must be > 0.*got 0\.0"),
        (lambda: ImportanceConfig(mask_high=0.1), r"mask_high must be > mask_low \(0\.5\)"),
        (lambda: RewardsConfig(discount=0.0), r"rewards\.discount must be in \(0, 1\], got 0\.0"),
        (lambda: RewardsConfig(overlong_buffer_tokens=5), r"overlong_buffer_tokens must be in 0"),
        (lambda: RewardsConfig(credit="turn", separately=True), r"credit must be 'trajectory'"),
        (lambda: AlgorithmConfig(advantage="leave_one_out"), r"normalize must be 'batch' or"),
        (
            lambda: AlgorithmConfig(rewards=RewardsConfig(credit="critic")),
            r"algorithm\.advantage must be 'none'",
        ),
    ],
)
def test_impossible_settings_name_value_range_and_flag(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_fixed_scale_needs_its_number():
    config = AlgorithmConfig(aggregation="fixed_scale")
    with pytest.raises(ValueError, match="needs scale_tokens >= 1, got 0"):
        policy_loss(make_inputs(), config=config)


@pytest.mark.parametrize("target", ["sampled", "full"])
def test_law_8_with_a_temperature_and_top_p_the_first_update_s_ratios_are_one(target):
    """A sampler of six tokens, by its definition; the learner scores with the whole softmax."""
    temperature, top_p = 0.6, 0.7
    scaled = jax.nn.log_softmax(draw(11, (*IDS.shape, 6)) / temperature)
    order = jnp.argsort(-scaled, axis=-1)
    sorted_mass = jnp.exp(jnp.take_along_axis(scaled, order, axis=-1))
    kept = jnp.cumsum(sorted_mass, axis=-1) - sorted_mass < top_p
    log_kept_mass = jnp.log(jnp.where(kept, sorted_mass, 0.0).sum(-1))
    logprobs = jnp.take_along_axis(scaled, order[..., :1], axis=-1)[..., 0]  # always in the set
    drawn_with = np.exp(logprobs) / np.where(kept, sorted_mass, 0.0).sum(-1)
    inputs = make_inputs()._replace(
        logprobs=logprobs,
        old_logprobs=logprobs,
        rollout_logprobs=logprobs,
        log_kept_mass=log_kept_mass,
    )
    config = AlgorithmConfig(importance=ImportanceConfig(target=target))
    measured = policy_loss(inputs, config=config)[1]
    assert np.any(np.asarray(log_kept_mass)[MASK] < -0.05)
    np.testing.assert_array_equal(np.asarray(measured["ratio_max"].values)[MASK], 1.0)
    true_ratio = np.exp(logprobs) / drawn_with  # of the whole softmax to what was drawn with
    expected = np.ones(IDS.shape) if target == "sampled" else true_ratio
    np.testing.assert_allclose(
        np.asarray(measured["importance_weight"].values)[MASK], expected[MASK], rtol=1e-5
    )
    if target == "sampled":
        assert np.all(np.asarray(measured["importance_weight"].values)[MASK] == 1.0)
