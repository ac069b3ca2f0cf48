"""A request on its way through the sampler, and what was sampled for it."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..sampling import PLAIN, Constraint
from ..types import NO_VERSION, Completion, FinishReason, Int32s, SampleRequest, TopLogprobs
from .sequence import Sequence
from .turns import Sampled

Ticket = int  # names a request, chosen by the caller, unique among those that haven't left
Rank = tuple[int, int]  # (priority, arrival): smaller is served first


@dataclass(eq=False)
class Occupant:
    """A request, waiting or in a row; what changes while it decodes is in `DecodingRows`.

    Attributes:
      rank: its place in the order of service.
      limit: the length at which it ends.
      tokens: its prompt, and what was sampled before it began to decode last.
      sampled: that part of it.
      row: which it has; -1 for none.
      shard: where its row and pages are.
      sequence: its cached positions, while it has a row or was parked.
      stopped: whether a stop string ended it.
    """

    ticket: Ticket
    request: SampleRequest
    rank: Rank
    limit: int
    tokens: Int32s
    sampled: Sampled | None = None
    row: int = -1
    shard: int = 0
    sequence: Sequence | None = None
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
        return len(self.tokens) - 1

    @property
    def constraint(self) -> Constraint | None:
        """What says which tokens are allowed next."""
        return self.request.sampling.constraint

    def positions_after(self, steps: int) -> int:
        """Cache positions in use after so many steps from here."""
        return min(len(self.tokens) - 1 + steps, self.limit - 1)

    def ask_constraint(self, tokens: Int32s, vocab_size: int) -> Collection[int]:
        """Ask which tokens are allowed after those that were sampled.

        Raises:
          ValueError: where it allows none, or an id that doesn't exist.
        """
        assert self.constraint is not None
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

    def take(self, sampled: Sampled) -> None:
        """Take in all that was sampled so far."""
        self.tokens = np.concatenate([self.request.tokens, sampled.tokens])
        self.sampled = sampled

    def complete(self) -> Completion:
        """Make the completion of a request that ended."""
        sampled = self.sampled
        assert sampled is not None, "it has sampled something"
        stopped = self.stopped or int(sampled.tokens[-1]) in self.request.stop_ids
        return Completion(
            tokens=sampled.tokens,
            logprobs=sampled.logprobs,
            policy_versions=sampled.versions,
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            log_kept_mass=sampled.log_kept_mass if self.draws_specially else None,
            top_logprobs=self._top(sampled),
        )

    def _top(self, sampled: Sampled) -> TopLogprobs | None:
        wanted = self.request.sampling.top_logprobs
        if not wanted:
            return None
        assert sampled.top is not None, "the service refuses what wasn't compiled"
        return TopLogprobs(sampled.top.ids[:, :wanted], sampled.top.logprobs[:, :wanted])
