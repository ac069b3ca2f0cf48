"""A student takes on a teacher's behaviour, on what it samples itself."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import trio

from headrace.pipeline.algorithms.config import AlgorithmConfig
from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.packing import PackItem
from headrace.pipeline.learner.distillation import DistillationConfig, Teacher, distilled
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import init
from headrace.pipeline.policy.record import Policy
from headrace.pipeline.policy.save import save_policy
from headrace.pipeline.policy.teacher import load_teacher
from headrace.pipeline.recipes import load_recipe
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from tests.learner.toy import (
    VOCAB,
    quick_jit,
    toy_batch,
    toy_forward,
    toy_items,
    toy_params,
)

SEQUENCES, LENGTH, UPDATES = 32, 8, 60
SHAPE = (4, 8, 12)
TEMPERATURE = 0.8


@pytest.mark.parametrize("rewards", [False, True])
def test_advantages_are_the_teachers_opinion_of_the_sampled_tokens(rewards):
    batch, teacher = toy_batch(), toy_params(1)
    poisoned = batch._replace(
        advantages=np.where(batch.loss_mask, batch.advantages, np.nan).astype(np.float32)
    )
    score = quick_jit(partial(batch_logprobs, forward=toy_forward, temperature=TEMPERATURE))
    old, of_teacher = (np.asarray(score(toy_params(seed), batch)) for seed in (0, 1))
    config = DistillationConfig("t", coefficient=0.3, rewards=rewards)
    found, told = quick_jit(
        partial(distilled, forward=toy_forward, config=config, temperature=TEMPERATURE)
    )(teacher, poisoned, np.where(batch.loss_mask, old, np.nan))
    gap = old - of_teacher
    expected = 0.3 * -gap + (batch.advantages if rewards else 0)
    mask = batch.loss_mask
    np.testing.assert_allclose(np.asarray(found)[mask], expected[mask], atol=1e-5)
    assert (np.asarray(found)[~mask] == 0).all()
    np.testing.assert_allclose(told["teacher_kl"], gap[mask].mean(), rtol=1e-4)


@quick_jit
def next_logits(params, tokens):
    positions = jax.numpy.broadcast_to(jax.numpy.arange(LENGTH, dtype="int32"), tokens.shape)
    hidden, head = toy_forward(params, tokens, positions, jax.numpy.ones_like(tokens))
    return jax.nn.log_softmax(hidden @ head.T / TEMPERATURE)


def sampled(params, rng):
    """Sequences of the student: one token given, the others drawn from it."""
    tokens = np.zeros((SEQUENCES, LENGTH), np.int32)
    tokens[:, 0] = rng.integers(0, VOCAB, SEQUENCES)
    for place in range(1, LENGTH):
        noise = rng.gumbel(size=(SEQUENCES, VOCAB))
        tokens[:, place] = (np.asarray(next_logits(params, tokens))[:, place - 1] + noise).argmax(
            -1
        )
    return tokens


def divergence(student, teacher, tokens):
    """KL(student || teacher) of the next token, exact, on the student's prefixes."""
    own, other = (np.asarray(next_logits(params, tokens)) for params in (student, teacher))
    return (np.exp(own) * (own - other)).sum(-1).mean()


def as_batch(tokens):
    blank = toy_items(lengths=(LENGTH,))[0]
    mask = np.arange(LENGTH) > 0
    nothing = np.zeros(LENGTH, np.float32)
    items = [
        PackItem(row, mask, nothing - 2.0, nothing, nothing, np.zeros_like(blank.lags))
        for row in tokens
    ]
    return toy_batch(items)


def test_a_student_learns_what_its_teacher_does():
    teacher = toy_params(1)
    rule = UpdateRule(
        forward=toy_forward,
        loss=partial(policy_loss, config=AlgorithmConfig()),
        optimizer=optax.adam(0.05),
        batch_shape=SHAPE,
        temperature=TEMPERATURE,
        distillation=DistillationConfig("t"),
    )
    rng = np.random.default_rng(0)
    exact, told = [], []

    async def main():
        device = DeviceThread("headrace-learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            learner = Learner(toy_params(0), rule, device, teacher=Teacher(toy_forward, teacher))
            for _ in range(UPDATES):
                tokens = sampled(learner.params, rng)
                exact.append(divergence(learner.params, teacher, tokens))
                told.append((await learner.update(as_batch(tokens)))["teacher_kl"])
            nursery.cancel_scope.cancel()

    trio.run(main)
    np.testing.assert_allclose(told[0], exact[0], rtol=0.3)  # an estimate of 224 tokens
    assert np.mean(exact[-5:]) < 0.15 * exact[0]


ROOT = Path(__file__).parents[2]
SMALL = [
    *("--run.steps", "2", "--run.no-predict", "--warm-start.steps", "0", "--evaluate.tasks", "0"),
    *("--schedule.batch-groups", "2", "--rollout.group-size", "2", "--rollout.max-episodes", "8"),
    *("--model.num-layers", "1", "--model.width", "16", "--model.ffn-width", "16"),
    *("--learner.microbatch-rows", "4", "--sampler.rows", "8", "--sampler.prefill-lanes", "4"),
    *("--env.latency.mean-seconds", "0.01", "--rollout.top-p", "0.9"),
]
TEXT = TextConfig("0123456789")
TINY = ModelConfig(num_layers=1, width=8, num_heads=1, num_kv_heads=1, head_width=4, ffn_width=8)


@pytest.fixture
def saved(tmp_path):
    """A run directory that has kept its policy."""
    params = init(TINY, 14, jax.random.key(0))
    save_policy(Policy(TINY, 14, params, TEXT), tmp_path / "policy")
    return tmp_path


def test_a_run_directory_is_a_teacher_for_the_same_alphabet_only(saved):
    assert load_teacher(str(saved), TEXT, 14).config == TINY
    with pytest.raises(ConfigError, match="student's tokenizer, but its alphabet is another"):
        load_teacher(str(saved), TextConfig("01"), 14)
    with pytest.raises(ConfigError, match="knows 14 token ids of the student's 20"):
        load_teacher(str(saved), TEXT, 20)
    with pytest.raises(ConfigError, match="one of them is of characters"):
        load_teacher(str(saved), None, 14)


@pytest.mark.slow
def test_a_run_with_a_teacher_says_how_far_it_is_from_it(tmp_path):
    text = load_recipe("calculator").text
    vocab = CharacterRenderer(text).vocab_size
    save_policy(Policy(TINY, vocab, init(TINY, vocab, jax.random.key(0)), text), tmp_path / "t")
    arguments = [*("train", "calculator", "--run.dir", str(tmp_path / "run")), *SMALL]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace",
            *arguments,
            "--distillation.teacher",
            str(tmp_path / "t"),
        ],
        cwd=ROOT,
        check=True,
        timeout=110,
    )
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in metrics]
    told = [line["teacher_kl"] for line in found if "teacher_kl" in line]
    assert len(told) == 2
    assert np.isfinite(told).all()
    assert max(line["advantage_abs"] for line in found if "advantage_abs" in line) > 0


@pytest.mark.parametrize("changes", [{"teacher": ""}, {"coefficient": 0.0}])
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        DistillationConfig(**changes)
