"""What the decoding rows have sampled in their turns so far, in one buffer for all rows.

A dispatch writes its k steps of all rows at once, each row's behind what it had. Steps in which a
row sampled nothing are written too, and overwritten by the next dispatch. Policy versions are
written apart, since they change seldom.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..types import Float32s, Int32s, TopLogprobs
from .config import SamplerConfig


class SampledBlock(NamedTuple):
    """What one decode dispatch sampled; on the device, or on the host.

    Attributes:
      draws: a `Draw`: tokens and their numbers, each [S, k, ...]; packed, on the host: the words
        of each token of a row, i32[S, k * n].
      num_sampled: i32[S], how many of them each row sampled, the first ones; a stop token was.
      active: bool[S], the rows that go on, those that weren't served included.
    """

    draws: Any
    num_sampled: Any
    active: Any


def words_of_draw(config: SamplerConfig) -> int:
    """Words of four bytes that a token has: its id, its two numbers, and the most likely ones."""
    return 3 + 2 * config.draws.max_top_logprobs


class Sampled(NamedTuple):
    """What was sampled in one turn so far; n tokens."""

    tokens: Int32s
    logprobs: Float32s
    log_kept_mass: Float32s
    versions: Int32s
    top: TopLogprobs | None


class Turns:
    """One turn a row."""

    def __init__(self, config: SamplerConfig):
        # A row's last dispatch may reach k - 1 steps beyond its last token.
        self._width = config.context_tokens + config.decode_tokens
        size, words = config.rows * self._width, words_of_draw(config)
        packed = np.zeros((size, words), np.int32)
        most = config.draws.max_top_logprobs
        ids, numbers = packed[:, 3 : 3 + most], packed[:, 3 + most :].view(np.float32)
        self._all = Sampled(  # views
            tokens=packed[:, 0],
            logprobs=packed[:, 1].view(np.float32),
            log_kept_mass=packed[:, 2].view(np.float32),
            versions=np.zeros(size, np.int32),
            top=TopLogprobs(ids, numbers) if most else None,
        )
        self._starts = np.arange(config.rows) * self._width
        # By place of a token: the words of k tokens from there on; a dispatch writes them at once.
        within = sliding_window_view(
            packed.reshape(-1), config.decode_tokens * words, writeable=True
        )
        self._windows = within[::words]

    def append(self, block: SampledBlock, counts: Int32s) -> None:
        """Write what a dispatch sampled; in rows that sampled nothing, it is overwritten.

        Args:
          block: its draws packed: of each token the id, the logprob, `log_kept_mass`, then the
            most likely ids and their logprobs.
          counts: i32[S], what each row had before.
        """
        self._windows[self._starts + counts] = block.draws

    def note_version(self, row: int, first: int, end: int, version: int) -> None:
        """Note which version sampled some tokens of a row."""
        start = row * self._width
        self._all.versions[start + first : start + end] = version

    def tokens(self, row: int, count: int) -> Int32s:
        """The first tokens of a row; to be read before the next `append`."""
        return self._all.tokens[self._part(row, count)]

    def read(self, row: int, count: int) -> Sampled:
        """Copy the first tokens of a row and what belongs to them."""
        turns, part = self._all, self._part(row, count)
        top = turns.top
        return Sampled(
            tokens=turns.tokens[part].copy(),
            logprobs=turns.logprobs[part].copy(),
            log_kept_mass=turns.log_kept_mass[part].copy(),
            versions=turns.versions[part].copy(),
            top=top and TopLogprobs(top.ids[part].copy(), top.logprobs[part].copy()),
        )

    def write(self, row: int, sampled: Sampled) -> None:
        """Give a row what `read` gave."""
        turns, part = self._all, self._part(row, len(sampled.tokens))
        turns.tokens[part] = sampled.tokens
        turns.logprobs[part] = sampled.logprobs
        turns.log_kept_mass[part] = sampled.log_kept_mass
        turns.versions[part] = sampled.versions
        if turns.top is not None and sampled.top is not None:
            turns.top.ids[part], turns.top.logprobs[part] = sampled.top

    def _part(self, row: int, count: int) -> slice:
        return slice(row * self._width, row * self._width + count)
