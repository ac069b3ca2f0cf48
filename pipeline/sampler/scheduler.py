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

from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from ..types import NO_VERSION, Completion, Int32s, SampleRequest
from .config import SamplerConfig
from .decoding_rows import DecodingRows
from .dispatches import DecodeDispatch, PrefillDispatch
from .lanes import Lane, make_chunk, plan_lanes
from .moves import Move
from .occupant import Occupant, Ticket
from .row_numbers import RowNumbers
from .shards import Shards
from .stops import DecodeText, first_stop
from .turns import SampledBlock
from .waiting import WaitingQueue

Finished = tuple[Ticket, Completion | Exception]  # an error of the request's own constraint

RANK = attrgetter("rank")
LONG_TURN = 16  # dispatches a request: a row that is freed one late then costs 6 %


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
        self._waiting = WaitingQueue(shards)
        self._arrivals = 0
        self._newest = NO_VERSION
        self._running: dict[Ticket, Occupant] = {}
        self._prefilling: dict[int, Occupant] = {}  # in order of assignment
        self._decoding: dict[int, Occupant] = {}
        self._rows = DecodingRows(config)  # of those that decode
        self._some_were_ready = False  # to decode, before the prefill dispatch planned last
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
        return not self._shards.are_ample and self._shards.are_short(self._rows.growth())

    @property
    def may_run_ahead(self) -> bool:
        """Whether to plan the next dispatch while results are unread.

        Not where a request may have to give up its row, nor where what comes next depends on the
        results, nor where another waits for a row that the results may free, unless rows are
        freed seldom.
        """
        if self._rows.constrained or (self._waiting and not self._turns_are_long):
            return False
        return not self.short_of_pages

    @property
    def _turns_are_long(self) -> bool:
        return self._served > LONG_TURN * self._completed

    def versions(self) -> list[int]:
        """The versions of the rows with a request, oldest first."""
        prefilling = {self._version_of(occupant) for occupant in self._prefilling.values()}
        return sorted(prefilling | self._rows.versions())

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
                self._waiting.add(occupant)
        for row, occupant in self._decoding.items():
            self._rows.follow(row, self._version_of(occupant))
        if again:
            for memory in self._shards.memories:
                memory.forget_idle()
            for occupant in self._waiting:
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
        self._waiting.add(Occupant(ticket, request, rank, limit, request.tokens))
        self._arrivals += 1

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request and free its row and pages; false if it had already left.

        The row may be given away at once: it falls silent before the next token is sampled.
        """
        if self._waiting.remove(ticket) is not None:
            return True
        occupant = self._running.get(ticket)
        if occupant is None:
            return False
        self._evacuate(occupant)
        return True

    def assign(self) -> None:
        """Set pages aside for the rows' next dispatch, and give free rows to waiting requests.

        The smallest rank is first; in a shard nobody overtakes the first one that its memory is
        too small for. No result may be unread if `short_of_pages`.
        """
        growth = self._rows.growth()
        if growth.any():
            self._set_aside(growth)
        shards = self._shards.with_free_rows
        while shards:
            occupant = self._waiting.first(shards)
            if occupant is None:
                return
            shards = (shards - self._place(occupant, shards)) & self._shards.with_free_rows

    def _place(self, occupant: Occupant, shards: set[int]) -> set[int]:
        """Give a request a row in one of some shards; return those with too little memory."""
        version = self._version_of(occupant)
        wanted = self._shards.candidates(occupant, version)
        tried = [shard for shard in wanted if shard in shards]
        if not tried:  # its pages are in another one
            self._waiting.bind(occupant, wanted[0])
            return set()
        if not any(self._shards.place(occupant, shard, version) for shard in tried):
            return set(tried)
        self._waiting.remove(occupant.ticket)
        self._running[occupant.ticket] = self._prefilling[occupant.row] = occupant
        return set()

    def take_moves(self) -> list[Move]:
        """Hand over what the device must do with pages before the next dispatch."""
        return self._shards.take_moves()

    def next_prefill(self, version: int) -> PrefillDispatch | None:
        """Plan one prefill dispatch of a version, longest-waiting rows first; None for no row.

        Rows whose prompt is in the cache afterwards are ready to decode.
        """
        occupants = self._prefilling_of(version)
        self._some_were_ready = not occupants or bool(self._rows.unfinished(version).any())
        if not occupants:
            return None
        lanes: list[list[Lane]] = [[] for _ in self._shards.memories]
        most, size = self._config.prefill_lanes // len(lanes), self._config.prefill_tokens
        for occupant in occupants:
            mine, memory = lanes[occupant.shard], self._shards.memory_of(occupant)
            mine += plan_lanes(occupant, version, memory, most=most - len(mine), size=size)
            if occupant.cached.valid == occupant.to_fill:
                self._start_decoding(occupant)
        ends = [lane.end for some in lanes for lane in some]
        if not ends:
            return None
        self.prefilled_tokens += sum(lane.end - lane.first for some in lanes for lane in some)
        window = self._config.window_for(max(ends))
        return PrefillDispatch(make_chunk(lanes, window, self._config), window)

    def next_decode(self, version: int) -> DecodeDispatch | None:
        """Plan what follows `next_prefill`, which must be carried out; None for no row.

        A dispatch costs the same for few rows as for many. So if all rows have just become ready,
        and as many still need their prompts, they wait for one more prefill dispatch, and never
        longer: a row that was ready before the last one is served, and all others with it.
        """
        if self._waits_for_prompts(version):
            return None
        self._constrain(version)
        served = self._rows.unfinished(version)
        count = int(np.count_nonzero(served))
        if count == 0:
            return None
        self._served += count
        window = self._config.window_for(int((self._rows.reach() * served).max()))
        plan, packed = self._rows.serve(served, window)
        return DecodeDispatch(plan, packed, self._numbers.take(), version, window)

    def _waits_for_prompts(self, version: int) -> bool:
        if self._some_were_ready:
            return False
        ready = int(np.count_nonzero(self._rows.unfinished(version)))
        return len(self._prefilling_of(version)) >= ready

    def decoding_rows(self) -> dict[Ticket, tuple[int, int]]:
        """Give the row of each request that is decoding, and the tokens of its prompt."""
        return {
            occupant.ticket: (row, len(occupant.request.tokens))
            for row, occupant in self._decoding.items()
        }

    def take_refused(self) -> list[Finished]:
        """Hand over the requests that `next_decode` ended since their constraint failed."""
        refused, self._refused = self._refused, []
        return refused

    def record(self, dispatch: DecodeDispatch, block: SampledBlock) -> list[Finished]:
        """Take in what a decode dispatch sampled; free the rows that ended."""
        taken = dispatch.plan.served & (dispatch.plan.tenures == self._rows.tenures)
        counts = self._rows.record(block, taken)
        finished: list[Finished] = []
        for row in np.flatnonzero(taken & (self._rows.watched | ~block.active)).tolist():
            occupant = self._decoding[row]
            try:
                ended = self._cut(occupant, int(counts[row])) or not block.active[row]
            except Exception as error:  # of the user's function that makes text
                self._evacuate(occupant)
                finished.append((occupant.ticket, error))
                continue
            if ended:
                self._finish(occupant)
                finished.append((occupant.ticket, occupant.complete()))
        return finished

    def _cut(self, occupant: Occupant, new: int) -> bool:
        """End the request after the first stop string; false where there is none.

        Args:
          new: tokens at its end that weren't searched yet.
        """
        strings = occupant.request.sampling.stop_strings
        if not strings:
            return False
        assert self._decode_text is not None, "the service refuses stop strings without it"
        tokens = self._rows.sampled(occupant.row).tolist()
        count = first_stop(self._decode_text, tokens, strings, searched=len(tokens) - new)
        if count is None:
            return False
        self._rows.cut(occupant.row, count)
        occupant.stopped = True
        self._silence(occupant)
        return True

    def _finish(self, occupant: Occupant) -> None:
        self._completed += 1
        self._leave_row(occupant)
        self._shards.keep(occupant)

    # Rows

    def _leave_row(self, occupant: Occupant) -> None:
        del self._running[occupant.ticket]
        if self._prefilling.pop(occupant.row, None) is None:
            del self._decoding[occupant.row]
            self._rows.stop(occupant)
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
        if self._fills_shared_pages(occupant):
            # The index remembers what is filled, and its end is what others take first: it finds
            # the rest again, and goes on sharing. From the host it would come as its own.
            self._evacuate(occupant)
        else:
            self._silence(occupant)
            self._leave_row(occupant)
            self._shards.memory_of(occupant).park(occupant.cached)
        self._waiting.add(occupant)
        self._parked += 1

    def _start_decoding(self, occupant: Occupant) -> None:
        self._shards.memory_of(occupant).own_page(occupant.cached)
        self._decoding[occupant.row] = self._prefilling.pop(occupant.row)
        self._rows.start(occupant, self._version_of(occupant))
        self._numbers.start(occupant)

    def _constrain(self, version: int) -> None:
        """Ask the constraints for the tokens allowed next; a request whose one fails ends."""
        for row in sorted(self._rows.constrained):
            occupant, sampled = self._decoding[row], self._rows.sampled(row)
            if self._version_of(occupant) != version:
                continue
            try:
                allowed = occupant.ask_constraint(sampled, self._vocab_size)
            except Exception as error:
                self._evacuate(occupant)
                self._refused.append((occupant.ticket, error))
                continue
            tokens = np.concatenate([occupant.request.tokens, sampled])
            self._numbers.constrain(row, tokens, allowed)

    def _version_of(self, occupant: Occupant) -> int:
        version = occupant.request.version
        return self._newest if version is None else version

    def _prefilling_of(self, version: int) -> list[Occupant]:
        occupants = self._prefilling.values()
        return [occupant for occupant in occupants if self._version_of(occupant) == version]

    def _set_aside(self, growth: Int32s) -> None:
        """Give rows more pages, so many each; where there are too few, some rows are given up."""
        if self._shards.are_short(growth):
            self._make_room([self._decoding[row] for row in np.flatnonzero(growth).tolist()])
        else:
            self._grow(growth)

    def _grow(self, growth: Int32s) -> None:
        """Give rows more pages, so many each; there are enough."""
        self._rows.add_pages(growth, self._shards.take(growth))

    def _make_room(self, occupants: Iterable[Occupant]) -> None:
        """Set pages aside for these rows; the largest ranks give theirs up for it."""
        for occupant in sorted(occupants, key=RANK):
            while occupant.row >= 0:
                growth = self._rows.growth()
                growth[: occupant.row] = growth[occupant.row + 1 :] = 0
                if not self._shards.are_short(growth):
                    self._grow(growth)
                    break
                neighbours = (one for one in self._running.values() if one.shard == occupant.shard)
                self._park(max(neighbours, key=RANK))

    def _fills_shared_pages(self, occupant: Occupant) -> bool:
        return occupant.row in self._prefilling and occupant.cached.fresh
