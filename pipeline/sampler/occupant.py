"""A request on its way through the sampler, and what was sampled for it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..sampling import PLAIN, Constraint
from ..types import (
    Bools,
    Completion,
    FinishReason,
    Float32s,
    Int32s,
    SampleRequest,
    TopLogprobs,
)
from .sequence import Sequence


class Columns(NamedTuple):
    """What one dispatch sampled, by row.

    Attributes:
      counts: how many tokens.
      tokens: lists of k; those from the count on mean nothing. So have `logprobs`.
      active: which rows go on.
      draws: all numbers, [k, S, ...].
    """

    counts: list[int]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    active: list[bool]
    draws: Any


class SampledBlock(NamedTuple):
    """What one decode dispatch sampled, on the host; see `decode.Decoded`."""

    draws: Any
    was_active: Bools
    active: Bools

    def columns(self) -> Columns:
        """Turn arrays over steps into lists over rows."""
        return Columns(
            counts=self.was_active.sum(axis=0).tolist(),
            tokens=self.draws.token.T.tolist(),
            logprobs=self.draws.logprob.T.tolist(),
            active=self.active.tolist(),
            draws=self.draws,
        )


Ticket = int  # names a request, chosen by the caller, unique among those that haven't left
Rank = tuple[int, int]  # (priority, arrival): smaller is served first


@dataclass(eq=False)
class Occupant:
    """A request, waiting or in a row.

    Attributes:
      rank: its place in the order of service.
      tokens: what was sampled, with `logprobs` and `versions`.
      row: which it has; -1 for none.
      shard: where its row and pages are.
      sequence: its cached positions, while it has a row or was parked.
      ahead: tokens that dispatches may have sampled whose results weren't read yet.
    """

    ticket: Ticket
    request: SampleRequest
    rank: Rank
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    row: int = -1
    shard: int = 0
    sequence: Sequence | None = None
    ahead: int = 0
    kept_masses: list[float] = field(default_factory=list)
    top_ids: list[Int32s] = field(default_factory=list)
    top_logprobs: list[Float32s] = field(default_factory=list)
    stopped: bool = False  # by a stop string

    @property
    def draws_specially(self) -> bool:
        """Whether tokens are drawn from another distribution than the temperature's softmax."""
        return self.request.temperature == 0 or self.request.sampling is not PLAIN

    @property
    def is_parked(self) -> bool:
        """Whether it had a row before and its cache is on the host."""
        return self.sequence is not None and self.sequence.copy is not None

    @property
    def length(self) -> int:
        """Tokens of the prompt and sampled ones."""
        return len(self.request.tokens) + len(self.tokens)

    @property
    def to_fill(self) -> int:
        """Positions that must be in the cache before it can decode: all but the last token's."""
        return self.length - 1

    @property
    def last_token(self) -> int:
        """The first input of `decode`."""
        return self.tokens[-1] if self.tokens else int(self.request.tokens[-1])

    def text(self) -> Int32s:
        """All tokens so far."""
        if not self.tokens:
            return self.request.tokens
        return np.concatenate([self.request.tokens, np.array(self.tokens, np.int32)])

    def positions_after(self, steps: int) -> int:
        """Cache positions in use after so many more steps, results that aren't read included."""
        return min(self.length - 1 + self.ahead + steps, self.limit - 1)

    @property
    def surely_ended(self) -> bool:
        """Whether it has reached its limit once all results are read."""
        return self.length + self.ahead >= self.limit

    @property
    def constraint(self) -> Constraint | None:
        """What says which tokens are allowed next."""
        return self.request.sampling.constraint

    def ask_constraint(self, vocab_size: int) -> Collection[int]:
        """Ask which tokens are allowed next.

        Raises:
          ValueError: where it allows none, or an id that doesn't exist.
        """
        assert self.constraint is not None
        allowed = self.constraint(np.array(self.tokens, np.int32))
        if not allowed:
            raise ValueError(f"a constraint must allow a token, got none after {self.tokens}")
        if min(allowed) < 0 or max(allowed) >= vocab_size:
            raise ValueError(
                f"a constraint must allow ids in 0..{vocab_size - 1}, got {sorted(allowed)} "
                f"after {self.tokens}"
            )
        listed = self.request.sampling.allowed_tokens
        both = allowed if listed is None else set(allowed) & set(listed)
        if not both:
            raise ValueError(
                f"a constraint allowed {sorted(allowed)} after {self.tokens}, none of which is in "
                "sampling.allowed_tokens"
            )
        return both

    def take(self, columns: Columns, row: int, version: int) -> None:
        """Take in what a dispatch sampled for its row."""
        count = columns.counts[row]
        self.tokens += columns.tokens[row][:count]
        self.logprobs += columns.logprobs[row][:count]
        self.versions += [version] * count
        if self.draws_specially:
            self.kept_masses += columns.draws.log_kept_mass[:count, row].tolist()
        if self.request.sampling.top_logprobs and columns.draws.top is not None:
            ids, logprobs = columns.draws.top
            self.top_ids.append(ids[:count, row])
            self.top_logprobs.append(logprobs[:count, row])

    def cut(self, count: int) -> None:
        """Forget what was sampled after the first tokens."""
        for sampled in (self.tokens, self.logprobs, self.versions, self.kept_masses):
            del sampled[count:]
        self.stopped = True

    def complete(self) -> Completion:
        """Make the completion of a request that ended."""
        count = len(self.tokens)
        stopped = self.stopped or self.tokens[-1] in self.request.stop_ids
        kept = np.array(self.kept_masses, np.float32) if self.draws_specially else None
        wanted = self.request.sampling.top_logprobs
        top = None
        if wanted:
            ids, logprobs = np.concatenate(self.top_ids), np.concatenate(self.top_logprobs)
            top = TopLogprobs(ids[:count, :wanted], logprobs[:count, :wanted])
        return Completion(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            policy_versions=np.array(self.versions, np.int32),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            log_kept_mass=kept,
            top_logprobs=top,
        )
