"""How far each decoding row is, which pages it has, and what it sampled: arrays over all rows.

While a request decodes, this is here and nowhere else: it is brought here when its row starts,
and back to the request when the row stops. So what is done in every dispatch is done for all
rows at once. An idle row has a length and a limit of 1: it needs no page and samples nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from ..types import NO_VERSION, Bools, Int32s
from .config import SamplerConfig
from .occupant import Occupant
from .pages import BIN
from .rows import FIRST_PAGE, NOBODY, RowPlan
from .turns import SampledBlock, Turns

TENURES = 2**31 - 1  # then they begin again
MIXED = NO_VERSION - 1  # the version of a cache with several behind it


class _Numbers(NamedTuple):
    """Of one row, or arrays of all.

    Attributes:
      version: that samples next.
      cached: that is behind the cache, or `MIXED`.
      prompt: tokens of the request.
      length: tokens so far.
      noted: of these, so many whose versions are noted.
      planned: its length once all results are read, if it samples whatever it may.
      limit: the length at which it ends.
      pages: in its block table.
    """

    tenure: Any
    version: Any
    cached: Any
    prompt: Any
    length: Any
    noted: Any
    planned: Any
    limit: Any
    pages: Any


IDLE = _Numbers(
    NOBODY, NO_VERSION, NO_VERSION, prompt=1, length=1, noted=1, planned=1, limit=1, pages=0
)


class DecodingRows:
    """S rows, of which some decode.

    Attributes:
      constrained: the rows that ask a constraint before each token.
      watched: bool[S], rows with stop strings.
    """

    def __init__(self, config: SamplerConfig):
        self._steps, self._page_tokens = config.decode_tokens, config.page_tokens
        width = config.cache_tokens // config.page_tokens
        self._plan = np.full((config.rows, FIRST_PAGE + width), BIN, np.int32)  # of `RowPlan`
        self._served, self._tables = self._plan[:, 0], self._plan[:, FIRST_PAGE:]
        self._table_starts = np.arange(config.rows) * self._plan.shape[1] + FIRST_PAGE
        of = _Numbers(*(np.full(config.rows, number, np.int32) for number in IDLE))
        self._of = of._replace(tenure=self._plan[:, 1])
        self._of.tenure[:] = NOBODY
        self.constrained: set[int] = set()
        self.watched = np.zeros(config.rows, np.bool_)
        self._started = 0
        self._turns = Turns(config)

    @property
    def tenures(self) -> Int32s:
        """i32[S], as they are now: another number each time that a row starts."""
        tenures: Int32s = self._of.tenure
        return tenures

    def start(self, occupant: Occupant, version: int) -> None:
        """Bring a request here that has a row and its prompt in the cache."""
        row, sequence, request = occupant.row, occupant.cached, occupant.request
        self._started = self._started % TENURES + 1
        numbers = _Numbers(
            tenure=self._started,
            version=version,
            cached=MIXED if sequence.version is None else sequence.version,
            prompt=len(request.tokens),
            length=len(occupant.tokens),
            noted=len(occupant.tokens),
            planned=len(occupant.tokens),
            limit=occupant.limit,
            pages=len(sequence.pages),
        )
        self._set(row, numbers)
        if request.sampling.constraint is not None:
            self.constrained.add(row)
        self.watched[row] = bool(request.sampling.stop_strings)
        self._tables[row, : len(sequence.pages)] = sequence.pages
        if occupant.sampled is not None:
            self._turns.write(row, occupant.sampled)

    def stop(self, occupant: Occupant) -> None:
        """Bring a request, its pages and what it sampled back; its row is idle from now on."""
        row, sequence = occupant.row, occupant.cached
        self._note_version(row)
        sequence.pages = self._tables[row, : self._of.pages[row]].tolist()
        sequence.write(int(self._of.length[row]) - 1, int(self._of.cached[row]))
        occupant.take(self._turns.read(row, self._count(row)))
        self._set(row, IDLE)
        self.constrained.discard(row)
        self.watched[row] = False
        self._tables[row] = BIN

    def follow(self, row: int, version: int) -> None:
        """Let a row sample with another version from now on; no result may be unread."""
        self._note_version(row)
        self._of.version[row] = version

    def versions(self) -> set[int]:
        """The versions that sample next."""
        return set(self._of.version.tolist()) - {NO_VERSION}

    def unfinished(self, version: int) -> Bools:
        """bool[S], the rows of a version that may have something to sample."""
        found: Bools = self._of.planned < self._of.limit
        found &= self._of.version == version
        return found

    def reach(self) -> Int32s:
        """i32[S], the cached positions in use after one more dispatch."""
        reach: Int32s = np.minimum(self._of.planned + self._steps, self._of.limit)
        reach -= 1
        return reach

    def growth(self) -> Int32s:
        """i32[S], the pages that one more dispatch needs beyond those that the row has."""
        growth = self.reach()
        growth += self._page_tokens - 1
        growth //= self._page_tokens
        growth -= self._of.pages
        np.maximum(growth, 0, out=growth)
        return growth

    def add_pages(self, growth: Int32s, pages: list[int]) -> None:
        """Give rows these pages, as many as `growth` says, row by row."""
        had = self._of.pages
        # Where each row's next page stands in the tables, less what the rows before it get.
        first = self._table_starts + had - np.cumsum(growth) + growth
        self._plan.reshape(-1)[np.repeat(first, growth) + np.arange(len(pages))] = pages
        had += growth

    def serve(self, served: Bools, window: int) -> tuple[RowPlan, Int32s]:
        """Note that one more dispatch samples in these rows; return its plan, also packed."""
        np.add(self._of.planned, self._steps, out=self._of.planned, where=served)
        # The dispatch may read its arrays later than it is made; ours go on being written.
        self._served[:] = served
        packed = self._plan[:, : FIRST_PAGE + window // self._page_tokens].copy()
        return RowPlan(served, packed[:, 1], packed[:, FIRST_PAGE:]), packed

    def record(self, block: SampledBlock, taken: Bools) -> Int32s:
        """Take in what a dispatch sampled in some rows; i32[S], tokens of each."""
        length, planned = self._of.length, self._of.planned
        counts: Int32s = block.num_sampled * taken
        self._turns.append(block, length - self._of.prompt)
        length += counts
        planned += counts
        np.subtract(planned, self._steps, out=planned, where=taken)
        return counts

    def sampled(self, row: int) -> Int32s:
        """The tokens that a row has sampled."""
        return self._turns.tokens(row, self._count(row)).copy()

    def cut(self, row: int, count: int) -> None:
        """Forget what a row sampled after the first tokens."""
        self._of.length[row] = self._of.prompt[row] + count

    def _note_version(self, row: int) -> None:
        """Note that its version sampled whatever the row has sampled since the last note."""
        of, prompt = self._of, self._of.prompt[row]
        if of.noted[row] == of.length[row]:
            return
        self._turns.note_version(row, of.noted[row] - prompt, self._count(row), of.version[row])
        of.noted[row] = of.length[row]
        if of.cached[row] != of.version[row]:
            of.cached[row] = MIXED

    def _set(self, row: int, numbers: _Numbers) -> None:
        for of_rows, number in zip(self._of, numbers, strict=True):
            of_rows[row] = number

    def _count(self, row: int) -> int:
        return int(self._of.length[row] - self._of.prompt[row])
