"""How far each decoding row is, which pages it has, and what it sampled: arrays over all rows.

While a request decodes, this is here and nowhere else: it is brought here when its row starts,
and back to the request when the row stops. So what is done in every dispatch is done for all
rows at once. An idle row has a length and a limit of 1: it needs no page and samples nothing.
"""

import numpy as np

from ..types import NO_VERSION, Bools, Int32s
from .config import SamplerConfig
from .occupant import Occupant
from .pages import BIN
from .turns import Int64s, SampledBlock, Turns

NOBODY = 0  # the tenure of an idle row
MIXED = NO_VERSION - 1  # the version of a cache with several behind it


class DecodingRows:
    """S rows, of which some decode.

    Attributes:
      tenures: i64[S], another number each time that a row starts.
      constrained: bool[S], rows that ask a constraint before each token.
      watched: bool[S], rows with stop strings.
    """

    def __init__(self, config: SamplerConfig):
        self._steps, self._page_tokens = config.decode_tokens, config.page_tokens
        rows = config.rows
        self.tenures = np.full(rows, NOBODY)
        self.constrained, self.watched = np.zeros((2, rows), np.bool_)
        self._started = 0
        self._prompts = np.ones(rows, np.int64)
        self._lengths = np.ones(rows, np.int64)
        self._limits = np.ones(rows, np.int64)
        self._ahead = np.zeros(rows, np.int64)  # that dispatches not yet read may have sampled
        self._versions = np.full(rows, NO_VERSION)  # that samples next
        self._cached = np.full(rows, NO_VERSION)  # that is behind the cache
        self._num_pages = np.zeros(rows, np.int64)
        self._tables = np.full((rows, config.cache_tokens // config.page_tokens), BIN, np.int32)
        self._turns = Turns(config)

    def start(self, occupant: Occupant, version: int) -> None:
        """Bring a request here that has a row and its prompt in the cache."""
        row, sequence, request = occupant.row, occupant.cached, occupant.request
        self._started += 1
        self.tenures[row] = self._started
        self.constrained[row] = request.sampling.constraint is not None
        self.watched[row] = bool(request.sampling.stop_strings)
        self._prompts[row] = len(request.tokens)
        self._lengths[row], self._limits[row] = len(occupant.tokens), occupant.limit
        self._versions[row] = version
        self._cached[row] = MIXED if sequence.version is None else sequence.version
        self._num_pages[row] = len(sequence.pages)
        self._tables[row, : len(sequence.pages)] = sequence.pages
        if occupant.sampled is not None:
            self._turns.write(row, occupant.sampled)

    def stop(self, occupant: Occupant) -> None:
        """Bring a request, its pages and what it sampled back; its row is idle from now on."""
        row, sequence = occupant.row, occupant.cached
        sequence.pages = self._tables[row, : self._num_pages[row]].copy()
        sequence.write(int(self._lengths[row]) - 1, int(self._cached[row]))
        occupant.take(self._turns.read(row, self._count(row)))
        self.tenures[row] = NOBODY
        self.constrained[row] = self.watched[row] = False
        self._prompts[row] = self._lengths[row] = self._limits[row] = 1
        self._ahead[row] = self._num_pages[row] = 0
        self._versions[row] = NO_VERSION
        self._tables[row] = BIN

    def follow(self, row: int, version: int) -> None:
        """Let a row sample with another version from now on."""
        self._versions[row] = version

    def versions(self) -> set[int]:
        """The versions that sample next."""
        return set(self._versions.tolist()) - {NO_VERSION}

    def unfinished(self, version: int) -> Bools:
        """bool[S], the rows of a version that may have something to sample."""
        found: Bools = self._lengths + self._ahead < self._limits
        found &= self._versions == version
        return found

    def reach(self) -> Int64s:
        """i64[S], the cached positions in use after one more dispatch."""
        after = self._lengths + self._ahead + (self._steps - 1)
        reach: Int64s = np.minimum(after, self._limits - 1)
        return reach

    def growth(self) -> Int64s:
        """i64[S], the pages that one more dispatch needs beyond those that the row has."""
        pages = -(-self.reach() // self._page_tokens)
        growth: Int64s = np.maximum(pages - self._num_pages, 0)
        return growth

    def add_pages(self, growth: Int64s, pages: Int32s) -> None:
        """Give rows these pages, as many as `growth` says, row by row."""
        rows = np.repeat(np.arange(len(growth)), growth)
        first = np.repeat(self._num_pages - np.cumsum(growth) + growth, growth)
        self._tables[rows, first + np.arange(len(pages))] = pages
        self._num_pages += growth

    def serve(self, served: Bools, window: int) -> Int32s:
        """Note that one more dispatch samples in these rows; return their pages in a window."""
        self._ahead[served] += self._steps
        # The dispatch may read its arrays later than it is made; ours go on being written.
        return self._tables[:, : window // self._page_tokens].copy()

    def record(self, block: SampledBlock, version: int, taken: Bools) -> Int64s:
        """Take in what a dispatch sampled in some rows; i64[S], tokens of each."""
        counts = np.where(taken, block.was_active.sum(axis=0), 0)
        self._turns.append(block, version, taken=taken, counts=self._lengths - self._prompts)
        self._ahead[taken] -= self._steps
        self._cached[taken & (self._cached != version)] = MIXED
        self._lengths += counts
        return counts

    def sampled(self, row: int) -> Int32s:
        """The tokens that a row has sampled."""
        return self._turns.tokens(row, self._count(row)).copy()

    def cut(self, row: int, count: int) -> None:
        """Forget what a row sampled after the first tokens."""
        self._lengths[row] = self._prompts[row] + count

    def _count(self, row: int) -> int:
        return int(self._lengths[row] - self._prompts[row])
