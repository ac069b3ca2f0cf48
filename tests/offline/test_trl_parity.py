"""Losses and gradients are those of TRL's trainers, on the batches that these make of text."""

import warnings
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import datasets
import huggingface_hub
import tokenizers
import torch
import tqdm
import transformers
import trl

from headrace.pipeline.algorithms.distillation import divergence
from headrace.pipeline.algorithms.preferences import orpo_loss
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.state import init_state
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.offline.batch import (
    BatchShape,
    Judged,
    judged_batch,
    mismatched_rows,
    plain_batch,
    sequence,
)
from headrace.pipeline.offline.config import PreferenceConfig
from headrace.pipeline.offline.objectives import preference_objective, sft_objective
from headrace.pipeline.offline.step import Fixed, measure_baseline, offline_step
from tests.models.families.parity import VOCAB, make_pair
from tests.models.families.test_parity import SIZES

with warnings.catch_warnings(action="ignore"):  # that they may change
    from trl.experimental import gkd, orpo

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SHAPE = BatchShape(units=4, rows=3, row_tokens=24)
SGD = optax.sgd(1.0)
PAIRS = [
    ("w5 w6 w7", "w8 w9", "w10 w11 w12"),
    ("w20", "w21 w22 w23 w24", "w25"),
    ("w30 w31 w32 w33", "w34", "w35 w36"),
    ("w40 w41", "w42 w43 w44", "w45 w46 w47 w48"),
]
LABELS = (True, False, True, True)


def tokenizer() -> Any:
    words = {f"w{index}": index for index in range(VOCAB)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="w0", pad_token="w1", unk_token="w2"
    )


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """A policy and a reference, each in both libraries."""
    folder = tmp_path_factory.mktemp("llama")
    settings = SIZES | {"tie_word_embeddings": False}
    return [make_pair("llama", settings, folder / str(seed), seed=seed) for seed in (0, 1)]


@pytest.fixture
def theirs(policies, tmp_path, monkeypatch):
    """What makes a trainer's arguments, and its models, the gradient of the first one at 0."""
    monkeypatch.chdir(tmp_path)
    # Both would leave threads.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(tqdm.std.tqdm, "monitor_interval", 0)
    policies[0].reference.zero_grad()

    def arguments(cls, **settings):
        return cls(
            output_dir=str(tmp_path),
            per_device_train_batch_size=len(PAIRS),
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **settings,
        )

    return arguments


def loss_of(trainer):
    """Its loss on its first batch, after a backward pass, and the batch."""
    trainer.model.eval()  # nothing is dropped out
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return float(loss.detach()), batch


def items_of(batch, prefix=""):
    """Its sequences without padding."""
    ids, masks = batch[f"{prefix}input_ids"], batch[f"{prefix}completion_mask"]
    there = batch[f"{prefix}attention_mask"].bool()
    return [
        sequence(i[t].numpy().astype(np.int32), m[t].numpy().astype(bool))
        for i, m, t in zip(ids, masks, there, strict=True)
    ]


def gradient(policies, batch, objective, fixed):
    params = policies[0].params
    state, metrics = jax.jit(partial(offline_step, objective=objective, optimizer=SGD))(
        init_state(params, SGD), batch, fixed
    )
    return float(metrics["loss"]), jax.tree.map(lambda a, b: a - b, params, state.params)


def assert_same(policies, ours, theirs):
    """Compare loss and gradients of the embedding and the head, which all tokens reach."""
    (loss, gradients), expected = ours, policies[0].reference
    np.testing.assert_allclose(loss, theirs, rtol=2e-5)
    embedding = expected.model.embed_tokens.weight.grad.numpy()
    head = expected.lm_head.weight.grad.numpy()
    np.testing.assert_allclose(gradients["embedding"], embedding, atol=2e-5 * abs(embedding).max())
    np.testing.assert_allclose(gradients["head"], head, atol=2e-5 * abs(head).max())


def model_of(policies):
    return decoder_model(policies[0].config, VOCAB).forward


def rows_of(pairs):
    names = ("prompt", "chosen", "rejected")
    return datasets.Dataset.from_list([dict(zip(names, pair, strict=True)) for pair in pairs])


@pytest.mark.parametrize(("loss", "their_name"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_pairs(policies, theirs, loss, their_name):
    trainer = trl.DPOTrainer(
        model=policies[0].reference,
        ref_model=policies[1].reference,
        args=theirs(trl.DPOConfig, loss_type=[their_name], beta=0.3),
        train_dataset=rows_of(PAIRS),
        processing_class=tokenizer(),
    )
    expected, batch = loss_of(trainer)
    items = items_of(batch)
    units = [Judged(*both) for both in zip(items[:4], items[4:], strict=True)]
    ours = judged_batch(units, SHAPE)
    forward = model_of(policies)
    ref = jax.jit(partial(batch_logprobs, forward=forward))(policies[1].params, ours.rows)
    objective = partial(
        preference_objective, forward=forward, config=PreferenceConfig(loss, beta=0.3)
    )
    assert_same(policies, gradient(policies, ours, objective, Fixed(ref)), expected)


def test_labels(policies, theirs):
    rows = [
        {"prompt": prompt, "completion": answer, "label": label}
        for (prompt, answer, _), label in zip(PAIRS, LABELS, strict=True)
    ]
    trainer = trl.KTOTrainer(
        model=policies[1].reference,  # the nearer one has a baseline above 0
        ref_model=policies[0].reference,
        args=theirs(trl.KTOConfig, beta=0.2, desirable_weight=1.5, undesirable_weight=0.5),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    policies = policies[::-1]
    policies[0].reference.zero_grad()
    expected, batch = loss_of(trainer)
    items = items_of(batch)
    labels = [bool(label) for label in batch["label"]]
    units = [
        Judged(it, None) if good else Judged(None, it)
        for it, good in zip(items, labels, strict=True)
    ]
    ours, forward = judged_batch(units, SHAPE), model_of(policies)
    score = jax.jit(partial(batch_logprobs, forward=forward))
    ref = score(policies[1].params, ours.rows)
    # Which prompts the answers are put behind is a choice; take theirs.
    swapped = plain_batch(items_of(batch, "KL_"), SHAPE).rows
    baseline = measure_baseline(
        *(score(policy.params, swapped) for policy in policies), jax.device_put(swapped)
    )
    assert mismatched_rows(units, SHAPE).tokens.shape == ours.rows.tokens.shape
    config = PreferenceConfig("kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.5)
    objective = partial(preference_objective, forward=forward, config=config)
    assert_same(policies, gradient(policies, ours, objective, Fixed(ref, baseline)), expected)


def test_imitation_of_completions(policies, theirs):
    rows = [{"prompt": prompt, "completion": answer} for prompt, answer, _ in PAIRS]
    trainer = trl.SFTTrainer(
        model=policies[0].reference,
        args=theirs(trl.SFTConfig),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    expected, batch = loss_of(trainer)
    batch["completion_mask"] = batch["labels"] != -100
    ours = plain_batch(items_of(batch), SHAPE)
    objective = partial(sft_objective, forward=model_of(policies))
    assert_same(policies, gradient(policies, ours, objective, Fixed()), expected)


def test_odds_ratios(policies):
    class Trainer:
        beta = 0.4
        accelerator = type("Accelerator", (), {"device": "cpu"})

    chosen, rejected = (
        -torch.rand(5, generator=torch.Generator().manual_seed(s)) * 4 for s in (0, 1)
    )
    scaled, *_ = orpo.ORPOTrainer.odds_ratio_loss(Trainer(), chosen, rejected)
    ours = orpo_loss(chosen.numpy(), rejected.numpy(), beta=0.4)
    np.testing.assert_allclose(ours, -chosen.numpy() - scaled.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "weight", "beta"),
    [("forward", 0.5, 0), ("reverse", 0.5, 1), ("jensen_shannon", 0.3, 0.3)],
)
def test_divergences(name, weight, beta):
    student, teacher = (
        3 * torch.randn(1, 6, VOCAB, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 1)
    )
    expected = gkd.GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, reduction="sum")
    both = [jax.nn.log_softmax(logits.numpy()) for logits in (teacher, student)]
    found = divergence(name, weight=weight)(*both).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
