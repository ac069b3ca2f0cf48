"""How fast the simulated sampler and learner are: two small records of constants."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from ..errors import check


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

    def coarsened(self, grain: int) -> Self:
        """Return the costs if one token stands for `grain` of them."""
        return replace(
            self,
            dispatch_seconds=self.dispatch_seconds * grain,
            row_seconds=self.row_seconds * grain,
            kv_token_seconds=self.kv_token_seconds * grain**2,  # each step reads each token
            prefill_token_seconds=self.prefill_token_seconds * grain,
            kv_tokens=None if self.kv_tokens is None else max(2, self.kv_tokens // grain),
        )

    def turn_seconds(self, context: int, tokens: int, *, company: int = 1) -> float:
        """Return the time that one turn alone costs a sampler.

        Args:
          context: tokens in the cache when the turn begins.
          tokens: sampled in the turn.
          company: so many equal rows share the constant part of each step.
        """
        step_seconds = self.dispatch_seconds / company + self.row_seconds
        read = tokens * context + tokens * (tokens - 1) / 2
        return tokens * step_seconds + read * self.kv_token_seconds


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
