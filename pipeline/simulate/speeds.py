"""How fast the simulated sampler and learner are: two small records of constants."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from ..errors import check


@dataclass(frozen=True, slots=True)
class Work:
    """What turns ask of a sampler.

    Attributes:
      tokens: sampled.
      cache_reads: for each of them, the tokens in the cache before it.
      prefilled: tokens that are given and not sampled.
    """

    tokens: float = 0.0
    cache_reads: float = 0.0
    prefilled: float = 0.0

    def plus(self, other: Self, *, share: float = 1.0) -> "Work":
        """Return the sum of this and a share of another work."""
        return Work(
            self.tokens + share * other.tokens,
            self.cache_reads + share * other.cache_reads,
            self.prefilled + share * other.prefilled,
        )


def work_of(turns: Iterable[tuple[int, int]]) -> Work:
    """Return the work of one episode's turns.

    Args:
      turns: where each turn's sampled tokens begin and end among the episode's tokens.

    Example:
      >>> work_of([(2, 4), (5, 6)])
      Work(tokens=3, cache_reads=10.0, prefilled=3)
    """
    tokens = prefilled = cached = 0
    cache_reads = 0.0
    for start, end in turns:
        count = end - start
        tokens += count
        cache_reads += count * start + count * (count - 1) / 2
        prefilled += start - cached
        cached = end
    return Work(tokens, cache_reads, prefilled)


@dataclass(frozen=True)
class SamplerSpeeds:
    """What a dispatch of the sampler takes, and what its cache holds.

    One decode step of all rows takes `dispatch_seconds + rows * row_seconds + tokens *
    kv_token_seconds`, for the tokens in the cache of the busy rows.
    """

    dispatch_seconds: float = 0.0
    """Constant part of a decode step: reading the weights, launching, >= 0."""
    row_seconds: float = 0.0
    """For each busy row in a decode step, >= 0."""
    kv_token_seconds: float = 0.0
    """For each cached token of the busy rows in a decode step, >= 0."""
    prefill_token_seconds: float = 0.0
    """For each prompt token that isn't cached, >= 0; decoding stands still meanwhile."""
    publish_seconds: float = 0.0
    """The pause for new weights, >= 0."""
    kv_tokens: int | None = None
    """Tokens that the cache holds, >= 2; none: any number."""
    prefix_reuse: bool = True
    """Whether a turn finds the tokens of the turns before it in the cache."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_seconds"):
                check(value >= 0, f"sim.speeds.sampler.{field.name}", value, ">= 0 and finite")
        enough = self.kv_tokens is None or self.kv_tokens >= 2
        check(enough, "sim.speeds.sampler.kv_tokens", self.kv_tokens, ">= 2")

    def with_rows(self, rows: int | None) -> "SamplerCosts":
        """Return the costs of a sampler with so many rows."""
        return SamplerCosts(**asdict(self), rows=rows)


@dataclass(frozen=True)
class SamplerCosts(SamplerSpeeds):
    """The speeds, and the rows.

    Attributes:
      rows: requests that decode at the same time, >= 1; None for all of them.
    """

    rows: int | None = None

    @property
    def turns_are_free(self) -> bool:
        """Whether a request takes no time at all, so that none waits for another."""
        paid = self.dispatch_seconds + self.row_seconds + self.kv_token_seconds
        return (
            self.rows is None
            and self.kv_tokens is None
            and not (paid or self.prefill_token_seconds)
        )

    def coarsened(self, coarsening: int) -> Self:
        """Return the costs if one token stands for `coarsening` of them."""
        return replace(
            self,
            dispatch_seconds=self.dispatch_seconds * coarsening,
            row_seconds=self.row_seconds * coarsening,
            kv_token_seconds=self.kv_token_seconds * coarsening**2,  # each step reads each token
            prefill_token_seconds=self.prefill_token_seconds * coarsening,
            kv_tokens=None if self.kv_tokens is None else max(2, self.kv_tokens // coarsening),
        )

    def seconds(self, work: Work, *, batch_rows: int = 1) -> float:
        """Return the least time that work takes if so many rows are always busy.

        A step samples one token for each row, and what these rows read fits into the cache.
        """
        steps = work.tokens / batch_rows
        if self.kv_tokens is not None:
            steps = max(steps, work.cache_reads / self.kv_tokens)
        return (
            steps * self.dispatch_seconds
            + work.tokens * self.row_seconds
            + work.cache_reads * self.kv_token_seconds
            + work.prefilled * self.prefill_token_seconds
        )


@dataclass(frozen=True)
class LearnerCosts:
    """What an update of the learner takes."""

    update_seconds: float = 0.0
    """Constant part of an update, >= 0."""
    token_seconds: float = 0.0
    """For each token of the microbatches in use, padding included, >= 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check(value >= 0, f"sim.speeds.learner.{field.name}", value, ">= 0 and finite")
