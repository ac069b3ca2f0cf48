"""Losses and gradients against TRL's own GRPO loss, on the same random logprobs.

TRL's `_compute_loss` is called as it is, on a trainer that has nothing but what it reads. It
differs where this is said: `bnpo` divides by the tokens of each microbatch and averages, so its
gradient depends on the split; DAPO's equation 8, which it stands for, has all tokens of the batch.
"""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms.aggregations import count
from headrace.pipeline.algorithms.config import ClipConfig
from headrace.pipeline.algorithms.inputs import LossInputs
from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.algorithms.presets import PRESETS

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

ROWS, TOKENS, LOW, HIGH, BETA = 4, 7, 0.2, 0.28, 0.04
LENGTHS = np.array([7, 2, 5, 1])
MASK = np.arange(TOKENS) < LENGTHS[:, None]


def drawn():
    rng = np.random.default_rng(0)
    old = rng.normal(-2.0, 0.5, (ROWS, TOKENS)).astype(np.float32)
    moved = (old + rng.normal(0.0, 0.4, old.shape)).astype(np.float32)
    ref = (old + rng.normal(0.0, 0.3, old.shape)).astype(np.float32)
    return moved, old, ref, rng.normal(size=ROWS).astype(np.float32)


def theirs(loss_type, *, rows=slice(None), level="token", steps=1, high=HIGH, delta=None):
    """TRL's loss of some rows and its gradient, with `steps` microbatches in an update."""
    from trl import GRPOTrainer  # noqa: PLC0415 - slow, and an extra

    moved, old, ref, advantages = (torch.tensor(array[rows]) for array in drawn())
    logprobs = moved.clone().requires_grad_(True)
    mask = torch.tensor(MASK[rows]).long()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (
            logprobs,
            torch.zeros_like(moved),
            None,
        ),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
        ),
        args=SimpleNamespace(
            delta=delta, use_bias_correction_kl=False, steps_per_generation=steps
        ),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=BETA,
        loss_type=loss_type,
        epsilon_low=LOW,
        epsilon_high=high,
        use_vllm=False,
        current_gradient_accumulation_steps=steps,
        max_completion_length=TOKENS,
        _entropy_bonus_enabled=False,
        use_adaptive_entropy=False,
        entropy_coef=0.0,
    )
    trainer.args.__dict__.setdefault("entropy_target", 0.0)
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "num_items_in_batch": torch.tensor(float(MASK.sum())),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return float(loss), logprobs.grad.numpy()


def ours(config):
    moved, old, ref, advantages = drawn()
    ids = np.ones((ROWS, TOKENS), np.int32)
    config = replace(config, kl=replace(config.kl, kind="k3", coefficient=BETA))

    def total(logprobs):
        nothing = jnp.zeros_like(logprobs)
        losses, _ = policy_loss(
            LossInputs(
                logprobs=logprobs,
                entropy=nothing,
                old_logprobs=old,
                rollout_logprobs=old,
                log_kept_mass=nothing,
                ref_logprobs=ref,
                advantages=np.broadcast_to(advantages[:, None], ids.shape),
                lags=np.zeros_like(ids),
                loss_mask=MASK,
                segment_ids=ids,
                counts=count(jnp.asarray(MASK)[None], jnp.asarray(ids)[None]),
            ),
            config=config,
        )
        return losses.sum()

    loss, gradient = jax.jit(jax.value_and_grad(total))(moved)
    return float(loss), np.asarray(gradient)


CLIP = ClipConfig(low=LOW, high=HIGH)
GRPO = replace(PRESETS["grpo"], clip=CLIP)
CASES = {
    "grpo": (GRPO, partial(theirs, "grpo")),
    "dr_grpo": (
        replace(GRPO, aggregation="fixed_scale", scale_tokens=TOKENS),
        partial(theirs, "dr_grpo"),
    ),
    "dapo": (replace(GRPO, aggregation="token_mean"), partial(theirs, "dapo")),
    "bnpo": (replace(GRPO, aggregation="token_mean"), partial(theirs, "bnpo")),
    "gspo": (replace(GRPO, ratio="sequence"), partial(theirs, "grpo", level="sequence")),
    "cispo": (
        replace(PRESETS["cispo"], clip=ClipConfig(low=1.0, high=0.28), aggregation="token_mean"),
        partial(theirs, "cispo", high=1.28),
    ),
    "dual clip": (replace(GRPO, clip=replace(CLIP, dual=1.5)), partial(theirs, "grpo", delta=1.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(name):
    config, their = CASES[name]
    (loss, gradient), (their_loss, their_gradient) = ours(config), their()
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3


def in_two(loss_type):
    """TRL's gradient of the rows with two microbatches of two rows each."""
    halves = [theirs(loss_type, rows=rows, steps=2)[1] for rows in (slice(0, 2), slice(2, 4))]
    return np.concatenate(halves)


def test_trls_bnpo_depends_on_the_split_into_microbatches_and_dapo_does_not():
    _, gradient = ours(CASES["bnpo"][0])
    np.testing.assert_allclose(in_two("dapo"), gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(in_two("bnpo") - gradient).max() > 0.1 * np.abs(gradient).max()
