"""The sampler's fixed sizes. Everything that changes with a request is an array instead."""

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from ..errors import check
from ..models.config import StoredWeights
from .options import OptionSizes

# Windows below 128 positions aren't bit-equal to longer ones, and neighbours choose the window.
SMALLEST_WINDOW = 128

AUTO = 0  # of `pages`: every row may have the longest context


@dataclass(frozen=True)
class DrawLimits:
    """What costs memory or time in every dispatch, and so is fixed when the programs are compiled.

    Raises:
      ConfigError: for a negative number.
    """

    max_logit_bias: int = 0
    """ids that one request may bias"""
    max_top_logprobs: int = 0
    """most likely tokens that one request may ask for beside each sampled one"""
    token_masks: bool = False
    """whether requests may say which tokens are allowed; each row then has vocabulary / 8 bytes
    more that go to the device"""
    record_experts: bool = False
    """for models with a mixture of experts: completions say which experts each token took"""

    def __post_init__(self) -> None:
        for name in ("max_logit_bias", "max_top_logprobs"):
            check(getattr(self, name) >= 0, f"sampler.draws.{name}", getattr(self, name), ">= 0")


@dataclass(frozen=True)
class SamplerConfig:
    """Sizes of the compiled programs.

    Raises:
      ConfigError: where a size is below 1 or the sizes don't fit each other.

    Example:
      >>> SamplerConfig(context_tokens=300, prefill_tokens=32).windows
      (128, 256, 384)
    """

    rows: int = 64
    """requests that decode at the same time"""
    context_tokens: int = 64
    """longest prompt and completion together"""
    decode_tokens: int = 4
    """tokens per dispatch; a freed row waits for the end of the dispatch"""
    prefill_lanes: int = 32
    """chunks of prompts that one prefill dispatch works on; a long prompt may have several"""
    prefill_tokens: int = 16
    """prompt tokens per lane and prefill dispatch; best near the usual length (all are padded)"""
    page_tokens: int = 16
    """positions per page of the cache, a power of two up to 128"""
    pages: int = AUTO
    """pages of the cache; 0 takes as many as all rows need at full length, and as many again for
    trajectories that wait for their environments"""
    max_stop_ids: int = 8
    """stop ids that one request may have"""
    draws: DrawLimits = field(default_factory=DrawLimits)
    """what requests may ask of their draws, beyond cuts and penalties"""
    attention: Literal["auto", "windows", "pages"] = "auto"
    """how decoding reads the cache: a copy of each row's window, anywhere, or the pages, by a
    kernel of the platform (TPU, GPU); auto takes that of a TPU if it fits the model's heads and
    the pages, and windows elsewhere"""
    kv_on_publish: Literal["keep", "recompute"] = "keep"
    """what a trajectory does with its keys and values when new weights come: go on with them, or
    compute them again; other trajectories never see those of older weights"""
    weights: StoredWeights = "float32"
    """how the sampler stores its copy of the weights; bfloat16 takes half the memory, int8 a
    quarter, and the learner's metrics mismatch_abs and mismatch_kl say what that changes"""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int:
                least = 0 if one.name == "pages" else 1
                check(value >= least, f"sampler.{one.name}", value, f">= {least}")
        check(
            self.context_tokens >= 2,
            "sampler.context_tokens",
            self.context_tokens,
            ">= 2 (one prompt token and one sampled)",
        )
        check(
            self.page_tokens <= SMALLEST_WINDOW and self.page_tokens.bit_count() == 1,
            "sampler.page_tokens",
            self.page_tokens,
            f"a power of two up to {SMALLEST_WINDOW}",
        )
        check(
            self.pages == AUTO or self.pages >= self.fewest_pages,
            "sampler.pages",
            self.pages,
            f">= {self.fewest_pages} (one request at full length, a copy, and a page for idle "
            f"rows), or {AUTO} for enough",
        )

    @property
    def cache_tokens(self) -> int:
        """Positions of the longest window: the context, rounded up to whole pages and chunks."""
        unit = math.lcm(self.page_tokens, self.prefill_tokens)
        chunks = _round_up(self.context_tokens, unit)
        if chunks <= SMALLEST_WINDOW:
            return chunks
        return _round_up(_round_up(chunks, SMALLEST_WINDOW), unit)

    @property
    def pages_per_request(self) -> int:
        """Pages of a request at full length."""
        return -(-self.context_tokens // self.page_tokens)

    @property
    def fewest_pages(self) -> int:
        """So many pages let at least one request at a time come to its end."""
        return self.pages_per_request + 2

    def num_pages(self, shards: int = 1) -> int:
        """P of one of several shards, its page for idle rows included."""
        if self.pages == AUTO:
            return 2 * self.rows // shards * self.pages_per_request + 2
        return self.pages // shards

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The attention windows that are compiled, ascending; the last is the whole context."""
        doubled = []
        window = SMALLEST_WINDOW
        while window < self.cache_tokens:
            doubled.append(window)
            window *= 2
        return (*doubled, self.cache_tokens)

    def option_sizes(self, vocab_size: int) -> OptionSizes:
        """How much one request may ask of its draws."""
        limits = self.draws
        return OptionSizes(
            vocab_size, limits.max_logit_bias, limits.max_top_logprobs, limits.token_masks
        )

    def window_for(self, positions: int) -> int:
        """The smallest compiled window that holds so many positions."""
        return next(window for window in self.windows if window >= positions)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
