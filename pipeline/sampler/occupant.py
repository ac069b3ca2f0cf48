"""A request on its way through the sampler, and what was sampled for it."""

from dataclasses import dataclass, field

import numpy as np

from ..types import Completion, FinishReason, Int32s, SampleRequest
from .sequence import Sequence

Ticket = int  # names a request, chosen by the caller, unique among those that haven't left
Rank = tuple[int, int]  # (priority, arrival): smaller is served first


@dataclass(eq=False)
class Occupant:
    """A request, waiting or in a row.

    Attributes:
      rank: its place in the order of service.
      tokens: what was sampled, with `logprobs` and `versions`.
      row: which it has; -1 for none.
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
    sequence: Sequence | None = None
    ahead: int = 0

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

    def complete(self) -> Completion:
        """Make the completion of a request that ended."""
        stopped = self.tokens[-1] in self.request.stop_ids
        return Completion(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            policy_versions=np.array(self.versions, np.int32),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
        )
