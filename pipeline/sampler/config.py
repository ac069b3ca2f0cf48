"""The sampler's fixed sizes. Everything that changes with a request is an array instead."""

from dataclasses import dataclass, fields

from ..errors import check

# Windows below 128 positions aren't bit-equal to longer ones, and neighbours choose the window.
SMALLEST_WINDOW = 128


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
    """longest prompt and completion together; memory grows with rows x context_tokens"""
    decode_tokens: int = 4
    """tokens per dispatch; a freed row waits for the end of the dispatch"""
    prefill_rows: int = 32
    """prompts that one prefill dispatch works on, at most rows"""
    prefill_tokens: int = 16
    """prompt tokens per row and prefill dispatch; best near the usual length (all are padded)"""
    max_stop_ids: int = 8
    """stop ids that one request may have"""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check(value >= 1, f"sampler.{field.name}", value, ">= 1")
        check(
            self.context_tokens >= 2,
            "sampler.context_tokens",
            self.context_tokens,
            ">= 2 (one prompt token and one sampled)",
        )
        check(
            self.prefill_rows <= self.rows,
            "sampler.prefill_rows",
            self.prefill_rows,
            f"<= rows ({self.rows})",
            hint="lower --sampler.prefill-rows or raise --sampler.rows",
        )

    @property
    def cache_tokens(self) -> int:
        """Positions of a row in the cache: the context, rounded up to whole chunks and windows."""
        chunks = _round_up(self.context_tokens, self.prefill_tokens)
        if chunks <= SMALLEST_WINDOW:
            return chunks
        return _round_up(_round_up(chunks, SMALLEST_WINDOW), self.prefill_tokens)

    @property
    def windows(self) -> tuple[int, ...]:
        """The attention windows that are compiled, ascending; the last one is the whole cache."""
        doubled = []
        window = SMALLEST_WINDOW
        while window < self.cache_tokens:
            doubled.append(window)
            window *= 2
        return (*doubled, self.cache_tokens)

    def window_for(self, positions: int) -> int:
        """The smallest compiled window that holds so many positions."""
        return next(window for window in self.windows if window >= positions)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
