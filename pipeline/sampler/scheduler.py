"""Which request has which row and which pages: a state machine without threads, clocks or JAX.

A request waits, then has a row: first its prompt is prefilled, then it decodes until the device
says that its row ended. Each request leaves exactly once: completed or cancelled. Nothing here
depends on time; equal calls give equal decisions.

A row has a policy version: that of its request, or the newest one. A dispatch serves the rows
of one version; what the others have on the device stays as it is.

Pages never run out inside a dispatch: those that it may write are set aside before it. Where
there are too few, the youngest request gives up its row and goes on later with the same bits.
The oldest one always has what it needs, so somebody always gets on.
"""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..types import NO_VERSION, Completion, Int32s, SampleRequest
from .config import SamplerConfig
from .memory import Memory
from .moves import Move
from .occupant import Occupant, Rank, SampledBlock, Ticket
from .options import write_allowed, write_options
from .pages import BIN
from .rows import NO_STOP, DecodeInput, PrefillChunk, RowUpdate, copied, idle_chunk, no_update
from .sequence import Sequence
from .stops import DecodeText, first_stop

Finished = tuple[Ticket, Completion | Exception]  # an error of the request's own constraint

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


class _Lane(NamedTuple):
    """One lane of a prefill dispatch: a piece of a text, and the pages of the text."""

    first: int
    end: int
    tokens: Int32s
    pages: list[int]


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
        pages = config.num_pages(shards)
        self._memories = [
            Memory(pages, config.page_tokens, shard=shard) for shard in range(shards)
        ]
        self._waiting: dict[Ticket, Occupant] = {}
        self._order: list[tuple[Rank, Ticket]] = []
        self._arrivals = 0
        self._newest = NO_VERSION
        count = config.rows // shards
        self._free = [list(range(shard * count, (shard + 1) * count)) for shard in range(shards)]
        self._running: dict[Ticket, Occupant] = {}
        self._prefilling: dict[int, Occupant] = {}  # in order of assignment
        self._decoding: dict[int, Occupant] = {}
        self._update = no_update(config, vocab_size)
        width = config.cache_tokens // config.page_tokens
        self._tables = np.full((config.rows, width), BIN, np.int32)  # of the decoding rows
        self._refused: list[Finished] = []
        self._served = 0  # rows of all dispatches together
        self._completed = 0
        self.prefilled_tokens = 0
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._waiting)

    @property
    def rows_busy(self) -> int:
        """Rows with a request."""
        return len(self._running)

    @property
    def pages_free(self) -> float:
        """Share of the pages that no request with a row holds."""
        available = sum(memory.available for memory in self._memories)
        return available / sum(memory.capacity for memory in self._memories)

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
        growth = [0] * len(self._memories)
        for occupant in self._running.values():
            growth[occupant.shard] += self._growth_of(occupant, _sequence(occupant))
        return any(
            pages > memory.available for pages, memory in zip(growth, self._memories, strict=True)
        )

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
            for memory in self._memories:
                memory.forget_idle()
            for occupant in self._waiting.values():
                if occupant.request.version is None:
                    occupant.sequence = None  # it was parked

    def drop(self, version: int) -> None:
        """Forget what only requests of this version could use; there are no more of them."""
        for memory in self._memories:
            memory.forget(version)

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Let a request wait for a row; its prompt must leave room for a token."""
        limit = min(len(request.tokens) + request.max_tokens, self._config.context_tokens)
        self._wait(Occupant(ticket, request, (request.priority, self._arrivals), limit))
        self._arrivals += 1

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request and free its row and pages; false if it had already left.

        The row may be given away at once: it falls silent before the next token is sampled.
        """
        if self._waiting.pop(ticket, None) is not None:
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
        for occupant in sorted(self._running.values(), key=_rank):
            self._make_room(occupant)
        elsewhere: list[tuple[Rank, Ticket]] = []
        while any(self._free) and self._waiting and self._order:
            rank, ticket = heapq.heappop(self._order)
            if ticket not in self._waiting:
                continue  # cancelled while it waited
            occupant = self._waiting[ticket]
            shards = [shard for shard in self._shards_for(occupant) if self._free[shard]]
            if not shards:  # its pages are where no row is free
                elsewhere.append((rank, ticket))
                continue
            if not any(self._find_pages(occupant, shard) for shard in shards):
                heapq.heappush(self._order, (rank, ticket))
                break
            del self._waiting[ticket]
            self._running[ticket] = occupant
            occupant.row = self._free[occupant.shard].pop()
            self._prefilling[occupant.row] = occupant
        for entry in elsewhere:
            heapq.heappush(self._order, entry)
        if not self._waiting:
            self._order.clear()  # what is left was cancelled

    def take_moves(self) -> list[Move]:
        """Hand over what the device must do with pages before the next dispatch."""
        return [move for memory in self._memories for move in memory.take_moves()]

    def next_prefill(self, version: int) -> PrefillDispatch | None:
        """Plan one prefill dispatch of a version, longest-waiting rows first; None for no row.

        Rows whose prompt is in the cache afterwards are ready to decode.
        """
        lanes: list[list[_Lane]] = [[] for _ in self._memories]
        for occupant in self._of_version(version, self._prefilling):
            self._plan_lanes(occupant, lanes[occupant.shard], version)
            if self._advance(occupant) == occupant.to_fill:
                self._start_decoding(occupant)
        planned = [lane for some in lanes for lane in some]
        if not planned:
            return None
        window = self._config.window_for(max(lane.end for lane in planned))
        self.prefilled_tokens += sum(lane.end - lane.first for lane in planned)
        return PrefillDispatch(self._chunk(lanes, window), window)

    def next_decode(self, version: int) -> DecodeDispatch | None:
        """Plan one decode dispatch of a version; None for no row. It must be carried out."""
        steps = self._config.decode_tokens
        self._constrain(version)
        occupants = [
            occupant
            for occupant in self._of_version(version, self._decoding)
            if not occupant.surely_ended
        ]
        if not occupants:
            return None
        positions = max(occupant.positions_after(steps) for occupant in occupants)
        window = self._config.window_for(max(positions, 1))
        served = np.zeros(self._config.rows, np.bool_)
        served[[occupant.row for occupant in occupants]] = True
        for occupant in occupants:
            occupant.ahead += steps
        tables = self._tables[:, : window // self._config.page_tokens].copy()
        inputs = DecodeInput(self._take_update(), served, tables)
        self._served += len(occupants)
        rows = [(occupant.row, occupant) for occupant in occupants]
        return DecodeDispatch(inputs, rows, version, window)

    def take_refused(self) -> list[Finished]:
        """Hand over the requests that `next_decode` ended since their constraint failed."""
        refused, self._refused = self._refused, []
        return refused

    def record(self, dispatch: DecodeDispatch, block: SampledBlock) -> list[Finished]:
        """Take in what a decode dispatch sampled; free the rows that ended."""
        finished: list[Finished] = []
        columns = block.columns()
        for row, occupant in dispatch.occupants:
            if self._decoding.get(row) is not occupant:
                continue  # cancelled, or ended by an earlier dispatch
            occupant.ahead -= self._config.decode_tokens
            occupant.take(columns, row, dispatch.version)
            ended = self._cut(occupant) or not columns.active[row]
            _sequence(occupant).write(occupant.length - 1, dispatch.version)
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
        count = first_stop(self._decode_text, occupant.tokens, strings)
        if count is None:
            return False
        occupant.cut(count)
        self._silence(occupant)
        return True

    def _finish(self, occupant: Occupant) -> None:
        self._completed += 1
        sequence = _sequence(occupant)
        self._leave_row(occupant)
        self._memory_of(occupant).keep(occupant.request.key, sequence, occupant.text())

    # Rows

    def _wait(self, occupant: Occupant) -> None:
        self._waiting[occupant.ticket] = occupant
        heapq.heappush(self._order, (occupant.rank, occupant.ticket))

    def _leave_row(self, occupant: Occupant) -> None:
        row = occupant.row
        del self._running[occupant.ticket]
        if self._prefilling.pop(row, None) is None:
            del self._decoding[row]
        self._tables[row] = BIN
        self._free[occupant.shard].append(row)
        occupant.row, occupant.ahead = -1, 0

    def _silence(self, occupant: Occupant) -> None:
        """Let the row stop before the next token."""
        if occupant.row in self._decoding:
            self._update.rows.active[occupant.row] = False
            self._update.changed[occupant.row] = True

    def _evacuate(self, occupant: Occupant) -> None:
        """Take a request out of its row; what is cached for it is given up."""
        self._silence(occupant)
        self._leave_row(occupant)
        self._memory_of(occupant).close(_sequence(occupant))
        occupant.sequence = None

    def _park(self, occupant: Occupant) -> None:
        """Take a request out of its row; it goes on later as if nothing had happened."""
        self._silence(occupant)
        self._leave_row(occupant)
        self._memory_of(occupant).park(_sequence(occupant))
        self._wait(occupant)
        self.preemptions += 1

    def _start_decoding(self, occupant: Occupant) -> None:
        self._memory_of(occupant).own_page(_sequence(occupant))
        row = occupant.row
        self._decoding[row] = self._prefilling.pop(row)
        _write_table(self._tables[row], _numbers(_sequence(occupant)))
        self._write_row(occupant)

    def _write_row(self, occupant: Occupant) -> None:
        """Tell the device all numbers of a row."""
        row, request, rows = occupant.row, occupant.request, self._update.rows
        rows.token[row] = occupant.last_token
        rows.position[row] = occupant.length - 1
        rows.active[row] = True
        rows.prompt[row] = len(request.tokens)
        rows.limit[row] = occupant.limit
        rows.key[row] = request.key
        rows.stop_ids[row] = NO_STOP
        rows.stop_ids[row, : len(request.stop_ids)] = request.stop_ids
        rows.single[row] = occupant.constraint is not None
        write_options(rows.options, row, request.sampling, temperature=request.temperature)
        self._update.changed[row] = True

    def _constrain(self, version: int) -> None:
        """Ask the constraints for the tokens allowed next; a request whose one fails ends."""
        for occupant in self._of_version(version, self._decoding):
            if occupant.constraint is None:
                continue
            try:
                allowed = occupant.ask_constraint(self._vocab_size)
            except Exception as error:
                self._evacuate(occupant)
                self._refused.append((occupant.ticket, error))
                continue
            self._write_row(occupant)
            write_allowed(self._update.rows.options, occupant.row, allowed)

    def _take_update(self) -> RowUpdate:
        """Hand over the rows that changed since the last call."""
        update = self._update
        self._update = RowUpdate(np.zeros_like(update.changed), update.rows)
        # The dispatch may read its arrays later than it is made; these go on being written.
        return RowUpdate(update.changed, copied(update.rows))

    def _version_of(self, occupant: Occupant) -> int:
        version = occupant.request.version
        return self._newest if version is None else version

    def _of_version(self, version: int, rows: dict[int, Occupant]) -> list[Occupant]:
        return [occupant for occupant in rows.values() if self._version_of(occupant) == version]

    # Pages

    def _memory_of(self, occupant: Occupant) -> Memory:
        return self._memories[occupant.shard]

    def _shards_for(self, occupant: Occupant) -> list[int]:
        """The only shard where it may go on, or all of them, the best first."""
        if len(self._memories) == 1:
            return [0]
        if occupant.sequence is not None:
            return [occupant.shard]
        request, text = occupant.request, occupant.text()
        version = self._version_of(occupant)
        order = []
        for shard, memory in enumerate(self._memories):
            if memory.continues(request.key, text, request.version):
                return [shard]
            order.append((-memory.knows(text[:-1], version), -len(self._free[shard]), shard))
        return [shard for _, _, shard in sorted(order)]

    def _find_pages(self, occupant: Occupant, shard: int) -> bool:
        """Open or take back the request's sequence, with pages up to the next dispatch's end.

        A page for each row stays available, two for each if the request was parked: it would
        be the first to be parked again.
        """
        occupant.shard = shard
        request, memory = occupant.request, self._memories[shard]
        rows = self._config.rows // len(self._memories) - len(self._free[shard])
        idle = memory.continues(request.key, occupant.text(), request.version)
        if occupant.sequence is not None:  # it was parked
            reserve = 2 * rows + self._growth_of(occupant, occupant.sequence)
            found = memory.bring_back(occupant.sequence, reserve)
        elif idle is not None:
            found = memory.resume(request.key, rows + self._growth_of(occupant, idle))
            occupant.sequence = idle if found else None
        else:
            found = self._begin(occupant, rows)
        if found:
            extended = self._extend(occupant)
            assert extended, "the pages were counted"
        return found

    def _begin(self, occupant: Occupant, rows: int) -> bool:
        """Open a sequence that prefill fills from the first token on, or from a known prefix."""
        memory, pinned = self._memory_of(occupant), occupant.request.version is not None
        pages = -(-occupant.to_fill // self._config.page_tokens)
        reserve = rows + self._pages_after(occupant) - pages
        text, version = occupant.text()[:-1], self._version_of(occupant)
        occupant.sequence = memory.begin(text, version, pinned=pinned, reserve=reserve)
        if occupant.sequence is None:
            return False
        self.preemptions += memory.lost(occupant.request.key)
        return True

    def _growth_of(self, occupant: Occupant, sequence: Sequence) -> int:
        return max(0, self._pages_after(occupant) - sequence.num_pages)

    def _pages_after(self, occupant: Occupant) -> int:
        """Pages of a request after the next dispatch."""
        positions = occupant.positions_after(self._config.decode_tokens)
        return -(-positions // self._config.page_tokens)

    def _make_room(self, occupant: Occupant) -> None:
        """Set pages aside for the next dispatch; the youngest give theirs up for it."""
        while occupant.row >= 0 and not self._extend(occupant):
            neighbours = (one for one in self._running.values() if one.shard == occupant.shard)
            self._park(max(neighbours, key=_rank))

    def _extend(self, occupant: Occupant) -> bool:
        sequence = _sequence(occupant)
        count = len(sequence.pages)
        positions = occupant.positions_after(self._config.decode_tokens)
        if not self._memory_of(occupant).extend(sequence, positions):
            return False
        if len(sequence.pages) > count and occupant.row in self._decoding:
            _write_table(self._tables[occupant.row], _numbers(sequence))
        return True

    # Prefill

    def _fills_shared_pages(self, occupant: Occupant) -> bool:
        return occupant.row in self._prefilling and _sequence(occupant).fresh

    def _advance(self, occupant: Occupant) -> int:
        return _sequence(occupant).advance(occupant.to_fill, self._config.page_tokens)

    def _plan_lanes(self, occupant: Occupant, lanes: list[_Lane], version: int) -> None:
        """Plan as many lanes as there are left and the text needs."""
        size, sequence = self._config.prefill_tokens, _sequence(occupant)
        while len(lanes) < self._config.prefill_lanes // len(self._memories):
            first = self._advance(occupant)
            end = min((first // size + 1) * size, occupant.to_fill)
            if first >= end:
                return
            # The page numbers of now: its last page may become another one when it decodes.
            lanes.append(_Lane(first, end, occupant.text()[first:end], _numbers(sequence)))
            sequence.mark(end, version, self._config.page_tokens)

    def _chunk(self, lanes: list[list[_Lane]], window: int) -> PrefillChunk:
        chunk, size = idle_chunk(self._config, window), self._config.prefill_tokens
        for shard, some in enumerate(lanes):
            first_lane = shard * (self._config.prefill_lanes // len(lanes))
            for index, lane in enumerate(some, first_lane):
                start = lane.first - lane.first % size
                chunk.tokens[index, lane.first - start : lane.end - start] = lane.tokens
                chunk.starts[index] = start
                chunk.first[index], chunk.end[index] = lane.first, lane.end
                _write_table(chunk.tables[index], lane.pages)
        return chunk


def _numbers(sequence: Sequence) -> list[int]:
    return [page.number for page in sequence.pages]


def _write_table(table: Int32s, numbers: list[int]) -> None:
    shown = numbers[: len(table)]
    table[: len(shown)] = shown


def _sequence(occupant: Occupant) -> Sequence:
    assert occupant.sequence is not None, "whoever has a row has a sequence"
    return occupant.sequence


def _rank(occupant: Occupant) -> Rank:
    return occupant.rank
