"""A request on its way through the sampler, and what was sampled for it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..sampling import PLAIN, Constraint
from ..types import (
    NO_VERSION,
    Bools,
    Completion,
    FinishReason,
    Int32s,
    SampleRequest,
    TopLogprobs,
)
from .sequence import Sequence


class SampledBlock(NamedTuple):
    """What one decode dispatch sampled, on the host; see `decode.Decoded`."""

    draws: Any
    was_active: Bools
    active: Bools


class Piece(NamedTuple):
    """The first tokens of one row of a block, all of one version."""

    block: SampledBlock
    row: int
    size: int
    version: int


Ticket = int  # names a request, chosen by the caller, unique among those that haven't left
Rank = tuple[int, int]  # (priority, arrival): smaller is served first


@dataclass(eq=False)
class Occupant:
    """A request, waiting or in a row.

    Attributes:
      rank: its place in the order of service.
      limit: the length at which it ends.
      length: tokens of the prompt and sampled ones.
      pieces: what was sampled, in order.
      row: which it has; -1 for none.
      shard: where its row and pages are.
      sequence: its cached positions, while it has a row or was parked.
      covered: positions that its pages can hold.
      ahead: tokens that dispatches may have sampled whose results weren't read yet.
      stopped: whether a stop string ended it.
    """

    ticket: Ticket
    request: SampleRequest
    rank: Rank
    limit: int
    length: int
    pieces: list[Piece] = field(default_factory=list)
    row: int = -1
    shard: int = 0
    sequence: Sequence | None = None
    covered: int = 0
    ahead: int = 0
    stopped: bool = False

    @property
    def draws_specially(self) -> bool:
        """Whether tokens are drawn from another distribution than the temperature's softmax."""
        return self.request.temperature == 0 or self.request.sampling is not PLAIN

    @property
    def trajectory(self) -> tuple[int, int, int]:
        """What its turns have in common: the random key, and the version if it is pinned."""
        version = self.request.version
        return (*self.request.key, NO_VERSION if version is None else version)

    @property
    def cached(self) -> Sequence:
        """The sequence of a request that has one, as each in a row does."""
        assert self.sequence is not None
        return self.sequence

    @property
    def to_fill(self) -> int:
        """Positions that must be in the cache before it can decode: all but the last token's."""
        return self.length - 1

    @property
    def last_token(self) -> int:
        """The first input of `decode`."""
        if not self.pieces:
            return int(self.request.tokens[-1])
        last = self.pieces[-1]
        return int(last.block.draws.token[last.size - 1, last.row])

    def sampled(self) -> Int32s:
        """What was sampled so far."""
        tokens: Int32s = self._joined([piece.block.draws.token for piece in self.pieces], np.int32)
        return tokens

    def text(self) -> Int32s:
        """All tokens so far."""
        if not self.pieces:
            return self.request.tokens
        return np.concatenate([self.request.tokens, self.sampled()])

    def positions_after(self, steps: int) -> int:
        """Cache positions in use after so many more steps, results that aren't read included."""
        positions = self.length - 1 + self.ahead + steps
        return positions if positions < self.limit else self.limit - 1

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
        tokens = self.sampled()
        allowed = self.constraint(tokens)
        if not allowed:
            raise ValueError(f"a constraint must allow a token, got none after {tokens.tolist()}")
        if min(allowed) < 0 or max(allowed) >= vocab_size:
            raise ValueError(
                f"a constraint must allow ids in 0..{vocab_size - 1}, got {sorted(allowed)} "
                f"after {tokens.tolist()}"
            )
        listed = self.request.sampling.allowed_tokens
        both = allowed if listed is None else set(allowed) & set(listed)
        if not both:
            raise ValueError(
                f"a constraint allowed {sorted(allowed)} after {tokens.tolist()}, none of which "
                "is in sampling.allowed_tokens"
            )
        return both

    def take(self, piece: Piece) -> None:
        """Take in what a dispatch sampled for its row."""
        if piece.size:
            self.pieces.append(piece)
            self.length += piece.size

    def cut(self, count: int) -> None:
        """Forget what was sampled after the first tokens; a stop string ended it there."""
        surplus = self.length - len(self.request.tokens) - count
        while surplus > 0:
            last = self.pieces.pop()
            kept = last.size - min(surplus, last.size)
            surplus -= last.size - kept
            self.length -= last.size - kept
            if kept:
                self.pieces.append(last._replace(size=kept))
        self.stopped = True

    def complete(self) -> Completion:
        """Make the completion of a request that ended."""
        stopped = self.stopped or self.last_token in self.request.stop_ids
        draws = [piece.block.draws for piece in self.pieces]
        versions = [np.full(piece.size, piece.version, np.int32) for piece in self.pieces]
        kept = None
        if self.draws_specially:
            kept = self._joined([draw.log_kept_mass for draw in draws], np.float32)
        return Completion(
            tokens=self.sampled(),
            logprobs=self._joined([draw.logprob for draw in draws], np.float32),
            policy_versions=np.concatenate(versions),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            log_kept_mass=kept,
            top_logprobs=self._top(draws),
        )

    def _top(self, draws: list[Any]) -> TopLogprobs | None:
        wanted = self.request.sampling.top_logprobs
        if not wanted:
            return None
        ids = self._joined([draw.top.ids for draw in draws], np.int32)
        logprobs = self._joined([draw.top.logprobs for draw in draws], np.float32)
        return TopLogprobs(ids[:, :wanted], logprobs[:, :wanted])

    def _joined(self, columns: list[Any], dtype: DTypeLike) -> Any:
        """Join the row's part of [k, S, ...] arrays, one for each piece."""
        parts = [
            column[: piece.size, piece.row]
            for column, piece in zip(columns, self.pieces, strict=True)
        ]
        return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
