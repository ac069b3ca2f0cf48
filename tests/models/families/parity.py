"""Tiny random checkpoints of Transformers, and the same models here.

Everything is drawn: norms and biases too, and matrices wide enough that a mistake anywhere
moves logits by far more than the tolerance.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.head import logits
from headrace.pipeline.models.parameters import Params
from headrace.pipeline.models.weights.convert import params_from_tensors

VOCAB = 101
TOLERANCE = 1e-4


class Pair(NamedTuple):
    """One model twice: Transformers', and ours read from the files that it saved."""

    reference: Any
    config: ModelConfig
    params: Params


def make_pair(kind: str, settings: dict[str, Any], folder: Path, *, seed: int = 0) -> Pair:
    """Make a random checkpoint, save it, and read it."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()  # it would leave a thread
    hub = transformers.AutoConfig.for_model(kind, vocab_size=VOCAB, **settings)
    reference = transformers.AutoModelForCausalLM.from_config(hub, attn_implementation="eager")
    draw_weights(reference, seed)
    reference.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    family = family_of(written)
    config = family.config_from(written)
    tensors = load_file(folder / "model.safetensors")
    params = params_from_tensors(tensors, family.entries(config), config, VOCAB)
    return Pair(reference, config, params)


def draw_weights(reference: Any, seed: int) -> None:
    """Draw every weight: matrices by their inputs, vectors around their usual value."""
    generator = torch.Generator().manual_seed(seed)
    reference.float().eval()
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(0.3 * noise)
            else:
                scale = 1.0 if "embed" in name else 1.3 * weight.shape[-1] ** -0.5
                weight.copy_(scale * noise)


def random_sequences(seed: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def reference_logits(pair: Pair, sequence: list[int]) -> np.ndarray:
    """Logits of one sequence by Transformers: [n, V]."""
    with torch.no_grad():
        found = pair.reference(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
    return found.numpy()


def packed_logits(pair: Pair, rows: list[list[list[int]]], length: int) -> list[np.ndarray]:
    """Logits of packed sequences by the learner's forward pass, in their order."""
    tokens, positions, segments = np.zeros((3, len(rows), length), np.int32)
    spans = []
    for row, members in enumerate(rows):
        end = 0
        for segment, member in enumerate(members, 1):
            start, end = end, end + len(member)
            tokens[row, start:end] = member
            positions[row, start:end] = np.arange(len(member))
            segments[row, start:end] = segment
            spans.append((row, slice(start, end)))
    found = np.asarray(_logits(pair.params, tokens, positions, segments, pair.config))
    return [found[row, span] for row, span in spans]


@partial(jax.jit, static_argnums=4)
def _logits(
    params: Params, tokens: Any, positions: Any, segments: Any, config: ModelConfig
) -> jax.Array:
    return logits(*forward(params, tokens, positions, segments, config=config))


def assert_packed_rows_match(pair: Pair, seed: int = 1) -> None:
    """Compare two rows: two sequences in one, a longer one in the other, and padding."""
    sequences = first, second, third = random_sequences(seed, 8, 13, 20)
    found = packed_logits(pair, [[first, second], [third]], length=23)
    for sequence, ours in zip(sequences, found, strict=True):
        expected = reference_logits(pair, sequence)
        assert expected.std() > 0.3, "the weights are too small to show a mistake"
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
