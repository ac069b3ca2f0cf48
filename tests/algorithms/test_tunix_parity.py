"""Losses and gradients against Tunix's own functions, on the same random logits.

Tunix pins other versions than the rest of the suite: these tests want an environment of their
own, with this package, its tests' needs and `google-tunix==0.1.7`. Its functions are called as
they are, on a model whose parameters are the logits. They differ, and the papers agree with
us, where a test says so.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms.advantages import group_relative, leave_one_out
from headrace.pipeline.algorithms.aggregations import count
from headrace.pipeline.algorithms.config import ClipConfig, ImportanceConfig, KlConfig
from headrace.pipeline.algorithms.critic import gae, value_loss
from headrace.pipeline.algorithms.inputs import LossInputs
from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.algorithms.preferences import dpo_loss, orpo_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.algorithms.reductions import masked_sum

pytest.importorskip("tunix")

from flax import nnx
from tunix.rl import algo_core
from tunix.rl.common import TrainExample
from tunix.sft.dpo import dpo_trainer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

ROWS, PROMPT, TOKENS, VOCAB = 4, 3, 7, 11
LOW, HIGH, BETA, TEMPERATURE = 0.2, 0.28, 0.04, 0.7
LENGTHS = np.array([7, 2, 5, 1])
MASK = np.arange(TOKENS) < LENGTHS[:, None]
IDS = np.ones((ROWS, TOKENS), np.int32)
NOTHING = np.zeros((ROWS, TOKENS), np.float32)


@pytest.fixture(autouse=True)
def usual_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Logits(nnx.Module):
    """A model that answers every question with its parameters."""

    def __init__(self, logits):
        self.logits = nnx.Param(logits)

    def __call__(self, tokens, positions, cache, attention_mask):
        return self.logits[...], None


class Values(Logits):
    def __call__(self, tokens, positions, cache, attention_mask, segment_ids=None):
        return self.logits[...]


def drawn():
    """Logits over prompt and answer, tokens, and logprobs near those of the logits."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, PROMPT + TOKENS, VOCAB)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, (ROWS, PROMPT + TOKENS)).astype(np.int32)
    near = np.asarray(logprobs_of(logits, tokens, TEMPERATURE))
    old, ref, rollout = (
        (near + rng.normal(0.0, spread, near.shape)).astype(np.float32)
        for spread in (0.4, 0.3, 0.5)
    )
    advantages = rng.normal(size=ROWS).astype(np.float32)
    return logits, tokens, SimpleNamespace(old=old, ref=ref, rollout=rollout, own=advantages)


def scores_of(logits, temperature):
    return jax.nn.log_softmax(logits[:, PROMPT - 1 : -1] / temperature)


def logprobs_of(logits, tokens, temperature):
    answers = tokens[:, PROMPT:, None]
    return jnp.take_along_axis(scores_of(logits, temperature), answers, axis=-1)[..., 0]


def assert_same(ours, theirs):
    (loss, gradient), (their_loss, their_gradient) = ours, theirs
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3


def differentiated(total, logits):
    loss, gradient = jax.value_and_grad(total)(jnp.asarray(logits))
    return float(loss), np.asarray(gradient)


def settings(**changes):
    usual = {
        "beta": BETA,
        "epsilon": LOW,
        "epsilon_high": LOW,
        "loss_algo": "grpo",
        "loss_agg_mode": "sequence-mean-token-mean",
        "temperature": TEMPERATURE,
        "kl_loss_mode": "low_var_kl",
        "kl_clamp_value": None,
    }
    return SimpleNamespace(**usual | changes)


def theirs(*, rows=slice(None), weigh=False, **changes):
    """Tunix's GRPO of some rows, and its gradient."""
    logits, tokens, about = drawn()
    weights = np.minimum(np.exp(about.old - about.rollout), 2.0) * MASK
    example = TrainExample(
        prompt_ids=jnp.asarray(tokens[rows, :PROMPT]),
        prompt_mask=jnp.ones((len(tokens[rows]), PROMPT), bool),
        completion_ids=jnp.asarray(tokens[rows, PROMPT:]),
        completion_mask=jnp.asarray(MASK[rows], jnp.int32),
        advantages=jnp.asarray(about.own[rows]),
        ref_per_token_logps=jnp.asarray(about.ref[rows]),
        old_per_token_logps=jnp.asarray(about.old[rows]),
        sampler_is_weights=jnp.asarray(weights[rows]) if weigh else None,
    )

    def total(logits):
        loss, _ = algo_core.grpo_loss_fn(
            Logits(logits), example, settings(**changes), pad_id=-1, eos_id=-2
        )
        return loss

    return differentiated(total, logits[rows])


def ours(config, *, temperature=TEMPERATURE, token_advantages=None):
    logits, tokens, about = drawn()
    advantages = np.broadcast_to(about.own[:, None], MASK.shape)

    def total(logits):
        scores = scores_of(logits, temperature)
        losses, _ = policy_loss(
            LossInputs(
                logprobs=logprobs_of(logits, tokens, temperature),
                entropy=-jnp.sum(jnp.exp(scores) * scores, axis=-1),
                old_logprobs=about.old,
                rollout_logprobs=about.rollout,
                log_kept_mass=NOTHING,
                ref_logprobs=about.ref,
                advantages=advantages if token_advantages is None else token_advantages,
                lags=np.zeros_like(IDS),
                loss_mask=MASK,
                segment_ids=IDS,
                counts=count(jnp.asarray(MASK)[None], jnp.asarray(IDS)[None]),
            ),
            config=config,
        )
        return losses.sum()

    return differentiated(total, logits)


PLAIN = ImportanceConfig(weights="none")
GRPO = replace(
    PRESETS["grpo"], clip=ClipConfig(LOW, LOW), kl=KlConfig(BETA, "k3"), importance=PLAIN
)
CLIP_HIGHER = ClipConfig(LOW, HIGH)
CASES = {
    "grpo": (GRPO, {}),
    "k2": (replace(GRPO, kl=KlConfig(BETA, "k2")), {"kl_loss_mode": "mse_kl"}),
    "dapo": (
        replace(GRPO, clip=CLIP_HIGHER, aggregation="token_mean"),
        {"epsilon_high": HIGH, "loss_agg_mode": "token-mean"},
    ),
    "dr_grpo": (
        replace(GRPO, aggregation="fixed_scale", scale_tokens=TOKENS),
        {"loss_agg_mode": "sequence-mean-token-scale"},
    ),
    "sums of sequences": (
        replace(GRPO, aggregation="sequence_sum"),
        {"loss_agg_mode": "seq-mean-token-sum"},
    ),
    "gspo_token": (replace(GRPO, ratio="sequence_token"), {"loss_algo": "gspo-token"}),
    "gspo": (replace(GRPO, ratio="sequence"), {"loss_algo": "gspo-token"}),
    "dual clip": (replace(GRPO, clip=ClipConfig(LOW, LOW, dual=1.5)), {"epsilon_c": 1.5}),
    "truncated importance sampling": (
        replace(GRPO, importance=ImportanceConfig(weights="token", cap=2.0)),
        {"weigh": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_of_grpo_and_its_kin(name):
    config, changes = CASES[name]
    assert_same(ours(config), theirs(**changes))


def test_tunixs_token_mean_depends_on_the_split_into_microbatches():
    """DAPO's equation 8 has all tokens of the batch; Tunix averages the microbatches' means."""
    config, changes = CASES["dapo"]
    halves = [theirs(rows=rows, **changes)[1] / 2 for rows in (slice(0, 2), slice(2, 4))]
    _, gradient = ours(config)
    assert np.abs(np.concatenate(halves) - gradient).max() > 0.1 * np.abs(gradient).max()


def test_tunixs_kl_mode_keeps_no_policy_near_its_reference():
    """Its default, log pi - log pi_ref, as a term of the loss: the gradient is `grad log pi`.

    It doesn't know the reference, and its mean under the policy is 0.
    """
    logits, tokens, _ = drawn()
    changes = {"kl_loss_mode": "kl", "loss_agg_mode": "token-mean", "beta": 1.0}
    with_kl, without = theirs(**changes)[1], theirs(**changes | {"beta": 0.0})[1]
    scores = np.asarray(scores_of(logits, TEMPERATURE), np.float64)
    chosen = np.eye(VOCAB)[tokens[:, PROMPT:]]
    expected = (chosen - np.exp(scores)) / TEMPERATURE * MASK[..., None] / MASK.sum()
    np.testing.assert_allclose((with_kl - without)[:, PROMPT - 1 : -1], expected, atol=1e-6)


def test_ppo_and_its_entropy_bonus():
    logits, tokens, about = drawn()
    rng = np.random.default_rng(1)
    advantages = rng.normal(size=MASK.shape).astype(np.float32)
    example = SimpleNamespace(
        prompt_ids=jnp.asarray(tokens[:, :PROMPT]),
        completion_ids=jnp.asarray(tokens[:, PROMPT:]),
        completion_mask=jnp.asarray(MASK, jnp.int32),
        advantages=jnp.asarray(advantages),
        old_per_token_logps=jnp.asarray(about.old),
        ref_per_token_logps=None,
    )
    algo = SimpleNamespace(epsilon_low=LOW, epsilon_high=HIGH, entropy_coef=0.1, epsilon_c=3.0)

    def total(logits):
        return algo_core.ppo_policy_loss_fn(Logits(logits), example, algo, -1, -2)[0]

    config = replace(
        PRESETS["ppo"],
        clip=ClipConfig(LOW, HIGH, dual=3.0),
        entropy_bonus=0.1,
        importance=PLAIN,
    )
    found = ours(config, temperature=1.0, token_advantages=advantages)
    assert_same(found, differentiated(total, logits))


def test_advantages_and_loss_of_a_critic():
    _, tokens, _ = drawn()
    rng = np.random.default_rng(2)
    rewards, values, old = (rng.normal(size=MASK.shape).astype(np.float32) for _ in range(3))
    mask = MASK & (np.arange(TOKENS) != 1)  # the environment speaks within an episode
    _, returns = algo_core.compute_gae_advantages(rewards * mask, values, mask, 0.9, 0.8)
    found = gae(rewards, jnp.asarray(values), mask, IDS, discount=0.9, trace=0.8)
    np.testing.assert_allclose((found + values)[mask], returns[mask], rtol=1e-5, atol=1e-5)

    example = SimpleNamespace(
        prompt_ids=jnp.asarray(tokens[:, :PROMPT]),
        completion_ids=jnp.asarray(tokens[:, PROMPT:]),
        completion_mask=jnp.asarray(mask, jnp.int32),
        old_values=jnp.asarray(old),
        returns=returns,
    )
    guessed = rng.normal(size=(ROWS, PROMPT + TOKENS, 1)).astype(np.float32)

    def their_total(guessed):
        return algo_core.ppo_value_loss_fn(Values(guessed), example, 0.2, -1, -2)[0]

    def total(guessed):
        losses = value_loss(guessed[:, PROMPT - 1 : -1, 0], old, returns, clip=0.2)
        return masked_sum(losses, jnp.asarray(mask)) / mask.sum()

    assert_same(differentiated(total, guessed), differentiated(their_total, guessed))


def test_advantages_of_groups():
    """Tunix divides by the sample's deviation (ddof 1), and we by the population's."""
    rewards = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
    present = np.ones(4, bool)

    def each(estimate):
        return np.concatenate([estimate(group, present) for group in rewards])

    flat = rewards.reshape(-1)
    centred = each(partial(group_relative, normalize_std=False))
    np.testing.assert_allclose(
        algo_core.compute_drgrpo_advantages(flat, 4), centred, rtol=1e-5, atol=1e-6
    )
    leave_out = np.asarray(algo_core.compute_rloo_advantages(jnp.asarray(flat), 4))
    np.testing.assert_allclose(leave_out, each(leave_one_out), rtol=1e-5, atol=1e-6)
    scaled = algo_core.compute_advantages(flat, 4)
    np.testing.assert_allclose(
        scaled, each(partial(group_relative, epsilon=0.0)) * np.sqrt(3 / 4), rtol=1e-5
    )


def of_pairs(algorithm, mask, **options):
    """Tunix's loss of two pairs, the better answers in the first two rows, and its gradient."""
    logits, tokens, about = drawn()
    ref = np.where(mask, about.ref, 0.0).sum(-1)
    example = dpo_trainer.TrainExample(
        input_ids=jnp.asarray(tokens),
        positions=None,
        attention_mask=None,
        ref_chosen_logps=jnp.asarray(ref[:2]),
        ref_rejected_logps=jnp.asarray(ref[2:]),
        completion_mask=jnp.asarray(mask, jnp.int32),
        logits_to_keep=TOKENS,
    )

    def total(logits):
        return dpo_trainer.dpo_loss_fn(Logits(logits), example, algorithm, **options)[0]

    return differentiated(total, logits), ref


def sums_of(logits, tokens, mask):
    return jnp.sum(jnp.where(mask, logprobs_of(logits, tokens, 1.0), 0.0), axis=-1)


def test_dpo():
    expected, ref = of_pairs("dpo", MASK, beta=0.3, label_smoothing=0.1)
    logits, tokens, _ = drawn()

    def total(logits):
        sums = sums_of(logits, tokens, MASK)
        margins, before = sums[:2] - sums[2:], ref[:2] - ref[2:]
        return jnp.mean(dpo_loss(margins, before, beta=0.3, label_smoothing=0.1))

    assert_same(differentiated(total, logits), expected)


def our_orpo(mask):
    logits, tokens, _ = drawn()

    def total(logits):
        means = sums_of(logits, tokens, mask) / mask.sum(-1)
        return jnp.mean(orpo_loss(means[:2], means[2:], beta=0.3))

    return differentiated(total, logits)


def test_orpo_of_answers_of_one_token():
    mask = np.arange(TOKENS) < np.ones((ROWS, 1))
    expected, _ = of_pairs("orpo", mask, lambda_orpo=0.3)
    assert_same(our_orpo(mask), expected)


def test_tunixs_odds_of_longer_answers_are_not_of_their_mean_logprobs():
    """ORPO's equation 1 has the mean; with sums the odds ratio is nearly the ratio of DPO."""
    expected, _ = of_pairs("orpo", MASK, lambda_orpo=0.3)
    assert abs(our_orpo(MASK)[0] - expected[0]) > 1e-2
