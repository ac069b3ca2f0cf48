"""Which request has which row: a state machine without threads, clocks or JAX.

A request waits, then has a row: first its prompt is prefilled chunk by chunk, then it
decodes until the device says that its row ended. Each request leaves exactly once: completed
or cancelled. Nothing here depends on time; equal calls give equal decisions.

A row has a policy version: that of its request, or the newest one. A dispatch serves the rows
of one version; what the others have on the device stays as it is.
"""

import heapq
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ..types import NO_VERSION, Bools, Completion, FinishReason, Float32s, Int32s, SampleRequest
from .config import SamplerConfig
from .rows import NO_STOP, PrefillChunk, RowUpdate, idle_chunk, no_update

Ticket = int  # names a request, chosen by the caller, unique among those that haven't left


@dataclass(frozen=True)
class SampledBlock:
    """What one decode dispatch sampled, on the host; see `decode.Decoded`.

    Attributes:
      version: the policy version of all its tokens.
    """

    tokens: Int32s
    logprobs: Float32s
    was_active: Bools
    active: Bools
    version: int


@dataclass(frozen=True, eq=False)
class DecodeDispatch:
    """What one decode dispatch is given.

    Attributes:
      update: the rows that changed since the last dispatch, of whatever version.
      served: bool[S], the rows that sample.
      positions: cache positions that it may touch in any served row.
    """

    update: RowUpdate
    served: Bools
    positions: int


@dataclass(eq=False)
class _Occupant:
    """The request in a row and what was sampled for it."""

    ticket: Ticket
    request: SampleRequest
    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def to_prefill(self) -> int:
        """Prompt tokens that aren't in the cache yet; the last one is left to `decode`."""
        return len(self.request.tokens) - 1 - self.prefilled

    @property
    def length(self) -> int:
        return len(self.request.tokens) + len(self.tokens)


class Scheduler:
    """Rows, their requests, and the requests that wait for one."""

    def __init__(self, config: SamplerConfig):
        self._config = config
        self._waiting: dict[Ticket, SampleRequest] = {}
        self._order: list[tuple[int, int, Ticket]] = []  # (priority, arrival, ticket)
        self._arrivals = 0
        self._newest = NO_VERSION
        self._prefilled_tokens = 0
        self._free = list(range(config.rows))
        self._row_of: dict[Ticket, int] = {}
        self._prefilling: dict[int, _Occupant] = {}  # in order of assignment
        self._decoding: dict[int, _Occupant] = {}
        self._update = no_update(config)

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._waiting)

    @property
    def rows_busy(self) -> int:
        """Rows with a request."""
        return len(self._row_of)

    @property
    def newest(self) -> int:
        """The version of the rows whose requests name none."""
        return self._newest

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens planned for prefill so far."""
        return self._prefilled_tokens

    @property
    def idle(self) -> bool:
        """Whether no request is here."""
        return not self._waiting and not self._row_of

    def versions(self) -> list[int]:
        """The versions of the rows with a request, oldest first."""
        occupants = chain(self._prefilling.values(), self._decoding.values())
        return sorted({self._version_of(occupant) for occupant in occupants})

    def publish(self, version: int) -> None:
        """Move the rows whose requests name no version to this one, which is newer."""
        self._newest = version

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Let a request wait for a row; its prompt must leave room for a token."""
        self._waiting[ticket] = request
        heapq.heappush(self._order, (request.priority, self._arrivals, ticket))
        self._arrivals += 1

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request and free its row; false if it had already left.

        The row may be given away at once: it falls silent before the next token is sampled.
        """
        if self._waiting.pop(ticket, None) is not None:
            return True
        row = self._row_of.pop(ticket, None)
        if row is None:
            return False
        if self._prefilling.pop(row, None) is None:
            del self._decoding[row]
            self._update.rows.active[row] = False
            self._update.changed[row] = True
        self._free.append(row)
        return True

    def assign(self) -> None:
        """Give free rows to waiting requests: smallest priority first, then first come."""
        while self._free and self._waiting:
            _, _, ticket = heapq.heappop(self._order)
            request = self._waiting.pop(ticket, None)
            if request is None:
                continue  # cancelled while it waited
            row = self._free.pop()
            self._row_of[ticket] = row
            self._prefilling[row] = _Occupant(ticket, request)
            if len(request.tokens) == 1:
                self._start_decoding(row)
        if not self._waiting:
            self._order.clear()  # what is left was cancelled

    def next_prefill(self, version: int) -> PrefillChunk | None:
        """Plan one prefill dispatch of a version, longest-waiting rows first; None for no row."""
        rows = self._rows_of(version, self._prefilling)
        if not rows:
            return None
        lanes, size = self._config.prefill_rows, self._config.prefill_tokens
        chunk = idle_chunk(self._config)
        for lane, (row, occupant) in enumerate(rows[:lanes]):
            start, count = occupant.prefilled, min(size, occupant.to_prefill)
            chunk.tokens[lane, :count] = occupant.request.tokens[start : start + count]
            chunk.rows[lane], chunk.starts[lane] = row, start
            occupant.prefilled += count
            self._prefilled_tokens += count
            if occupant.to_prefill == 0:
                self._start_decoding(row)
        return chunk

    def next_decode(self, version: int) -> DecodeDispatch | None:
        """Plan one decode dispatch of a version; None for no row. It must be carried out."""
        rows = self._rows_of(version, self._decoding)
        if not rows:
            return None
        served = np.zeros(self._config.rows, np.bool_)
        served[[row for row, _ in rows]] = True
        longest = max(occupant.length for _, occupant in rows)
        positions = min(longest - 1 + self._config.decode_tokens, self._config.context_tokens)
        return DecodeDispatch(self._take_update(), served, positions)

    def record(self, block: SampledBlock) -> list[tuple[Ticket, Completion]]:
        """Take in what a decode dispatch sampled for its version; free the rows that ended."""
        counts = block.was_active.sum(axis=0).tolist()
        goes_on = block.active.tolist()
        tokens, logprobs = block.tokens.T.tolist(), block.logprobs.T.tolist()
        finished = []
        for row, occupant in self._rows_of(block.version, self._decoding):
            count = counts[row]
            occupant.tokens += tokens[row][:count]
            occupant.logprobs += logprobs[row][:count]
            occupant.versions += [block.version] * count
            if not goes_on[row]:
                finished.append((occupant.ticket, _complete(occupant)))
                del self._decoding[row], self._row_of[occupant.ticket]
                self._free.append(row)
        return finished

    def _version_of(self, occupant: _Occupant) -> int:
        version = occupant.request.version
        return self._newest if version is None else version

    def _rows_of(self, version: int, rows: dict[int, _Occupant]) -> list[tuple[int, _Occupant]]:
        return [
            (row, occupant)
            for row, occupant in rows.items()
            if self._version_of(occupant) == version
        ]

    def _take_update(self) -> RowUpdate:
        """Hand over the rows that changed since the last call."""
        update = self._update
        self._update = RowUpdate(np.zeros_like(update.changed), update.rows)
        return update

    def _start_decoding(self, row: int) -> None:
        occupant = self._prefilling.pop(row)
        self._decoding[row] = occupant
        request, rows, length = occupant.request, self._update.rows, len(occupant.request.tokens)
        rows.token[row] = request.tokens[-1]
        rows.position[row] = length - 1
        rows.active[row] = True
        rows.limit[row] = min(length + request.max_tokens, self._config.context_tokens)
        rows.key[row] = request.key
        rows.temperature[row] = request.temperature
        rows.stop_ids[row] = NO_STOP
        rows.stop_ids[row, : len(request.stop_ids)] = request.stop_ids
        self._update.changed[row] = True


def _complete(occupant: _Occupant) -> Completion:
    stopped = occupant.tokens[-1] in occupant.request.stop_ids
    return Completion(
        tokens=np.array(occupant.tokens, np.int32),
        logprobs=np.array(occupant.logprobs, np.float32),
        policy_versions=np.array(occupant.versions, np.int32),
        finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
    )
