"""The workload that engines are compared on: models, prompts, turns and latencies, by seed.

The numbers are shared with the drivers of other libraries, so equal names mean equal work:
float32, 512 token ids, random weights of Qwen3's shape. Everything drawn depends on the seed
and the place in the workload only.
"""

import math
from dataclasses import dataclass

import numpy as np

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.types import Int32s

SEED = 1234
VOCAB_SIZE = 512
LATENCY_SIGMA = 0.6
LATENCY_TAIL_SHARE = 0.03
LATENCY_TAIL_SECONDS = 2.0
LATENCY_MEAN_SECONDS = 0.2  # of what isn't in the tail

# Streams of random numbers, told apart by the last entry of their seed.
_PLAIN, _OBSERVATION, _PROMPT = 5, 7, 99


def qwen3(num_layers: int, width: int, num_heads: int, head_width: int) -> ModelConfig:
    """Make a model of Qwen3's shape: half as many kv heads, a feed-forward layer 3 times wide."""
    return ModelConfig(
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_heads // 2,
        head_width=head_width,
        ffn_width=3 * width,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        qk_norm=True,
        tied_embeddings=True,
    )


SMOKE = ModelConfig(
    num_layers=1,
    width=32,
    num_heads=2,
    num_kv_heads=1,
    head_width=16,
    ffn_width=64,
    rope_theta=1_000_000.0,
    qk_norm=True,
)

# The name says how many million parameters; `smoke` has 25 thousand and is for tests.
MODELS = {
    "smoke": SMOKE,
    "m05": qwen3(num_layers=2, width=128, num_heads=4, head_width=32),
    "m4": qwen3(num_layers=5, width=256, num_heads=4, head_width=64),
    "m30": qwen3(num_layers=10, width=512, num_heads=8, head_width=64),
}


@dataclass(frozen=True)
class Plain:
    """Full rows that start together; `new_tokens` sampled in each, none of them a stop."""

    prompt_tokens: int = 64
    new_tokens: int = 64


@dataclass(frozen=True)
class Agentic:
    """Groups of episodes: a turn is sampled, a tool takes its time, its reply is appended."""

    prompts: int = 4
    group_size: int = 8
    turns: int = 4
    turn_tokens: int = 16
    prompt_tokens: int = 64
    observation_tokens: int = 25

    @property
    def episodes(self) -> int:
        """Episodes of one wave."""
        return self.prompts * self.group_size

    @property
    def longest(self) -> int:
        """Tokens of an episode when its last turn is complete."""
        return self.prompt_tokens + self.turns * self.turn_tokens + self.observed_tokens

    @property
    def observed_tokens(self) -> int:
        """Observation tokens that a later turn of the same episode reads."""
        return (self.turns - 1) * self.observation_tokens

    @property
    def conversation_tokens(self) -> int:
        """Tokens of one wave that nobody sampled, each counted once.

        A group's prompt counts once for all its members. So much has to be prefilled at least.
        """
        return self.prompts * self.prompt_tokens + self.episodes * self.observed_tokens

    @property
    def read_tokens(self) -> int:
        """Tokens of one wave that all requests together have as their prompts."""
        grown = self.turn_tokens + self.observation_tokens
        turns = range(self.turns)
        return self.episodes * sum(self.prompt_tokens + turn * grown for turn in turns)


def plain_prompt(round_index: int, row: int, length: int) -> Int32s:
    """Draw a prompt that no other row or round has."""
    return _draw([SEED, round_index, row, _PLAIN], length)


def prompt(prompt_index: int, length: int) -> Int32s:
    """Draw the prompt of a group."""
    return _draw([SEED, prompt_index, _PROMPT], length)


def observation(prompt_index: int, member: int, turn: int, length: int) -> Int32s:
    """Draw a tool's reply."""
    return _draw([SEED, prompt_index, member, turn, _OBSERVATION], length)


def latency_seconds(prompt_index: int, member: int, turn: int) -> float:
    """Draw how long a tool takes: lognormal with a rare long tail, 0.25 s on average."""
    rng = np.random.default_rng([SEED, prompt_index, member, turn])
    in_tail = rng.random() < LATENCY_TAIL_SHARE
    mu = math.log(LATENCY_MEAN_SECONDS) - LATENCY_SIGMA**2 / 2
    usual = float(rng.lognormal(mu, LATENCY_SIGMA))
    return LATENCY_TAIL_SECONDS if in_tail else usual


def _draw(seed: list[int], length: int) -> Int32s:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).astype(np.int32)
