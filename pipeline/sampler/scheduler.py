"""Which request has which row and which pages: a state machine without threads, clocks or JAX.

A request waits, then has a row: first its prompt is prefilled, then it decodes until the device
says that its row ended. Each request leaves exactly once: completed or cancelled. Nothing here
depends on time; equal calls give equal decisions.

A row has a policy version: that of its request, or the newest one. A dispatch serves the rows
of one version; what the others have on the device stays as it is.

Pages never run out inside a dispatch: those that it may write are set aside before it. Where
there are too few, the request of the largest rank (priority, then arrival) gives up its row and
goes on later with the same bits. The smallest always has what it needs, so somebody gets on.
"""

import heapq
from dataclasses import dataclass

from ..types import NO_VERSION, Completion, SampleRequest
from .config import SamplerConfig
from .lanes import Lane, make_chunk, plan_lanes
from .moves import Move
from .occupant import Occupant, Piece, Rank, SampledBlock, Ticket
from .row_numbers import RowNumbers
from .rows import DecodeInput, PrefillChunk
from .shards import Shards
from .stops import DecodeText, first_stop

Finished = tuple[Ticket, Completion | Exception]  # an error of the request's own constraint

STALE_ENTRIES = 64  # of cancelled requests, that the queue may have beside those of the waiting
LONG_TURN = 16  # dispatches a request: a row that is freed one late then costs 6 %


@dataclass(frozen=True, eq=False)
class PrefillDispatch:
    """A planned prefill dispatch, and the window that it needs."""

    chunk: PrefillChunk
    window: int


@dataclass(frozen=True, eq=False)
class DecodeDispatch:
    """A planned decode dispatch.

    Attributes:
      occupants: who sample, with the rows they have.
      version: the policy version of all tokens.
      window: positions that it may touch in any served row, rounded up to a compiled window.
    """

    inputs: DecodeInput
    occupants: list[tuple[int, Occupant]]
    version: int
    window: int


class Scheduler:
    """Rows, pages, their requests, and the requests that wait for them."""

    def __init__(
        self,
        config: SamplerConfig,
        vocab_size: int,
        *,
        shards: int = 1,
        decode_text: DecodeText | None = None,
    ):
        """Args:
        shards: parts of rows, lanes and pages that have nothing in common.
        decode_text: turns sampled ids into text, for stop strings.
        """
        self._config = config
        self._vocab_size = vocab_size
        self._decode_text = decode_text
        self._shards = Shards(config, shards)
        self._waiting: dict[Ticket, Occupant] = {}
        self._order: list[tuple[Rank, Ticket]] = []
        self._arrivals = 0
        self._newest = NO_VERSION
        self._running: dict[Ticket, Occupant] = {}
        self._prefilling: dict[int, Occupant] = {}  # in order of assignment
        self._decoding: dict[int, Occupant] = {}
        self._numbers = RowNumbers(config, vocab_size)
        self._refused: list[Finished] = []
        self._served = 0  # rows of all dispatches together
        self._completed = 0
        self.prefilled_tokens = 0
        self._parked = 0

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._waiting)

    @property
    def rows_busy(self) -> int:
        """Rows with a request."""
        return len(self._running)

    @property
    def preemptions(self) -> int:
        """How often a request lost its row, or its trajectory's cache, since pages were short."""
        return self._parked + self._shards.lost

    @property
    def pages_free(self) -> float:
        """Share of the pages that no request with a row holds."""
        return self._shards.pages_free

    @property
    def newest(self) -> int:
        """The version of the rows whose requests name none."""
        return self._newest

    @property
    def idle(self) -> bool:
        """Whether no request is here."""
        return not self._waiting and not self._running

    @property
    def short_of_pages(self) -> bool:
        """Whether the next dispatch makes a request give up its row."""
        return self._shards.are_short(self._shards.in_need(self._running.values()))

    @property
    def may_run_ahead(self) -> bool:
        """Whether to plan the next dispatch while results are unread.

        Not where a request may have to give up its row, nor where what comes next depends on the
        results, nor where another waits for a row that the results may free, unless rows are
        freed seldom.
        """
        if self.short_of_pages or self._constrained:
            return False
        return not self._waiting or self._turns_are_long

    @property
    def _constrained(self) -> bool:
        if not self._config.draws.token_masks:
            return False
        return any(occupant.constraint is not None for occupant in self._running.values())

    @property
    def _turns_are_long(self) -> bool:
        return self._served > LONG_TURN * self._completed

    def versions(self) -> list[int]:
        """The versions of the rows with a request, oldest first."""
        return sorted({self._version_of(occupant) for occupant in self._running.values()})

    def publish(self, version: int) -> None:
        """Move the rows whose requests name no version to this one, which is newer.

        A prompt that isn't wholly in the cache is computed anew, so that no shared page has
        more than one version behind it. No result may be unread.
        """
        self._newest = version
        again = self._config.kv_on_publish == "recompute"
        for occupant in list(self._running.values()):
            if occupant.request.version is None and (again or self._fills_shared_pages(occupant)):
                self._evacuate(occupant)
                self._wait(occupant)
        if again:
            for memory in self._shards.memories:
                memory.forget_idle()
            for occupant in self._waiting.values():
                if occupant.request.version is None:
                    occupant.sequence = None  # it was parked

    def drop(self, version: int) -> None:
        """Forget what only requests of this version could use; there are no more of them."""
        for memory in self._shards.memories:
            memory.forget(version)

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Let a request wait for a row; its prompt must leave room for a token."""
        limit = min(len(request.tokens) + request.max_tokens, self._config.context_tokens)
        rank = request.priority, self._arrivals
        self._wait(Occupant(ticket, request, rank, limit, length=len(request.tokens)))
        self._arrivals += 1

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request and free its row and pages; false if it had already left.

        The row may be given away at once: it falls silent before the next token is sampled.
        """
        if self._waiting.pop(ticket, None) is not None:
            if len(self._order) > 2 * len(self._waiting) + STALE_ENTRIES:
                self._order = [(one.rank, one.ticket) for one in self._waiting.values()]
                heapq.heapify(self._order)
            return True
        occupant = self._running.get(ticket)
        if occupant is None:
            return False
        self._evacuate(occupant)
        return True

    def assign(self) -> None:
        """Set pages aside for the rows' next dispatch, and give free rows to waiting requests.

        The smallest rank is first; nobody overtakes the first one that memory is too small for.
        No result may be unread if `short_of_pages`.
        """
        for occupant in sorted(self._shards.in_need(self._running.values()), key=_rank):
            self._make_room(occupant)
        elsewhere: list[tuple[Rank, Ticket]] = []
        while self._shards.row_is_free and self._order:
            rank, ticket = heapq.heappop(self._order)
            if ticket not in self._waiting:
                continue  # cancelled while it waited
            occupant = self._waiting[ticket]
            version = self._version_of(occupant)
            shards = self._shards.candidates(occupant, version)
            if not shards:  # its pages are where no row is free
                elsewhere.append((rank, ticket))
            elif any(self._shards.place(occupant, shard, version) for shard in shards):
                self._running[ticket] = self._waiting.pop(ticket)
                self._prefilling[occupant.row] = occupant
            else:
                heapq.heappush(self._order, (rank, ticket))
                break
        for entry in elsewhere:
            heapq.heappush(self._order, entry)
        if not self._waiting:
            self._order.clear()  # what is left was cancelled

    def take_moves(self) -> list[Move]:
        """Hand over what the device must do with pages before the next dispatch."""
        return self._shards.take_moves()

    def next_prefill(self, version: int) -> PrefillDispatch | None:
        """Plan one prefill dispatch of a version, longest-waiting rows first; None for no row.

        Rows whose prompt is in the cache afterwards are ready to decode.
        """
        lanes: list[list[Lane]] = [[] for _ in self._shards.memories]
        most = self._config.prefill_lanes // len(lanes)
        for occupant in self._of_version(version, self._prefilling):
            mine = lanes[occupant.shard]
            mine += plan_lanes(occupant, version, most - len(mine), self._config)
            if self._is_filled(occupant):
                self._start_decoding(occupant)
        ends = [lane.end for some in lanes for lane in some]
        if not ends:
            return None
        self.prefilled_tokens += sum(lane.end - lane.first for some in lanes for lane in some)
        window = self._config.window_for(max(ends))
        return PrefillDispatch(make_chunk(lanes, window, self._config), window)

    def next_decode(self, version: int) -> DecodeDispatch | None:
        """Plan one decode dispatch of a version; None for no row. It must be carried out."""
        steps = self._config.decode_tokens
        self._constrain(version)
        rows, positions = [], 1
        for occupant in self._of_version(version, self._decoding):
            if not occupant.surely_ended:
                positions = max(positions, occupant.positions_after(steps))
                occupant.ahead += steps
                rows.append((occupant.row, occupant))
        if not rows:
            return None
        self._served += len(rows)
        window = self._config.window_for(positions)
        inputs = self._numbers.take([row for row, _ in rows], window)
        return DecodeDispatch(inputs, rows, version, window)

    def take_refused(self) -> list[Finished]:
        """Hand over the requests that `next_decode` ended since their constraint failed."""
        refused, self._refused = self._refused, []
        return refused

    def record(self, dispatch: DecodeDispatch, block: SampledBlock) -> list[Finished]:
        """Take in what a decode dispatch sampled; free the rows that ended."""
        finished: list[Finished] = []
        counts, active = block.was_active.sum(axis=0).tolist(), block.active.tolist()
        for row, occupant in dispatch.occupants:
            if self._decoding.get(row) is not occupant:
                continue  # cancelled, or ended by an earlier dispatch
            occupant.ahead -= self._config.decode_tokens
            occupant.take(Piece(block, row, counts[row], dispatch.version))
            try:
                ended = self._cut(occupant) or not active[row]
            except Exception as error:  # of the user's function that makes text
                self._evacuate(occupant)
                finished.append((occupant.ticket, error))
                continue
            occupant.cached.write(occupant.length - 1, dispatch.version)
            if ended:
                finished.append((occupant.ticket, occupant.complete()))
                self._finish(occupant)
        return finished

    def _cut(self, occupant: Occupant) -> bool:
        """End the request after the first stop string; false where there is none."""
        strings = occupant.request.sampling.stop_strings
        if not strings:
            return False
        assert self._decode_text is not None, "the service refuses stop strings without it"
        count = first_stop(self._decode_text, occupant.sampled().tolist(), strings)
        if count is None:
            return False
        occupant.cut(count)
        self._silence(occupant)
        return True

    def _finish(self, occupant: Occupant) -> None:
        self._completed += 1
        self._leave_row(occupant)
        self._shards.keep(occupant)

    # Rows

    def _wait(self, occupant: Occupant) -> None:
        self._waiting[occupant.ticket] = occupant
        heapq.heappush(self._order, (occupant.rank, occupant.ticket))

    def _leave_row(self, occupant: Occupant) -> None:
        row = occupant.row
        del self._running[occupant.ticket]
        if self._prefilling.pop(row, None) is None:
            del self._decoding[row]
        self._numbers.clear(row)
        self._shards.leave(occupant)

    def _silence(self, occupant: Occupant) -> None:
        """Let the row stop before the next token."""
        if occupant.row in self._decoding:
            self._numbers.silence(occupant.row)

    def _evacuate(self, occupant: Occupant) -> None:
        """Take a request out of its row; what is cached for it is given up."""
        self._silence(occupant)
        self._leave_row(occupant)
        self._shards.memory_of(occupant).close(occupant.cached)
        occupant.sequence = None

    def _park(self, occupant: Occupant) -> None:
        """Take a request out of its row; it goes on later as if nothing had happened."""
        self._silence(occupant)
        self._leave_row(occupant)
        self._shards.memory_of(occupant).park(occupant.cached)
        self._wait(occupant)
        self._parked += 1

    def _start_decoding(self, occupant: Occupant) -> None:
        self._shards.memory_of(occupant).own_page(occupant.cached)
        self._decoding[occupant.row] = self._prefilling.pop(occupant.row)
        self._numbers.start(occupant)

    def _constrain(self, version: int) -> None:
        """Ask the constraints for the tokens allowed next; a request whose one fails ends."""
        for occupant in self._of_version(version, self._decoding):
            if occupant.constraint is None:
                continue
            try:
                self._numbers.constrain(occupant, occupant.ask_constraint(self._vocab_size))
            except Exception as error:
                self._evacuate(occupant)
                self._refused.append((occupant.ticket, error))

    def _version_of(self, occupant: Occupant) -> int:
        version = occupant.request.version
        return self._newest if version is None else version

    def _of_version(self, version: int, rows: dict[int, Occupant]) -> list[Occupant]:
        return [occupant for occupant in rows.values() if self._version_of(occupant) == version]

    def _make_room(self, occupant: Occupant) -> None:
        """Set pages aside for the next dispatch; the largest ranks give theirs up for it."""
        known = len(occupant.cached.pages)
        while occupant.row >= 0:
            if self._shards.extend(occupant):
                if occupant.row in self._decoding:
                    self._numbers.extend(occupant, known)
                return
            neighbours = (one for one in self._running.values() if one.shard == occupant.shard)
            self._park(max(neighbours, key=_rank))

    def _fills_shared_pages(self, occupant: Occupant) -> bool:
        return occupant.row in self._prefilling and occupant.cached.fresh

    def _is_filled(self, occupant: Occupant) -> bool:
        filled = occupant.cached.advance(occupant.to_fill, self._config.page_tokens)
        return filled == occupant.to_fill


def _rank(occupant: Occupant) -> Rank:
    return occupant.rank
