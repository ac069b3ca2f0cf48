"""A device without a model: its pages hold what a position was computed from, and by whom.

Where a real page has keys and values, a cell has the token, the policy version, who wrote it,
and a fingerprint of this and of the cell before it in the same text. So whatever goes wrong
with pages, a wrong copy, a page with two owners, a lane in the wrong place, shows in the
fingerprints, and thereby in all tokens drawn after it. Decoding reads views: copies of cells that
stay from dispatch to dispatch, and are made anew where a row has another tenure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.logits import Draw
from headrace.pipeline.sampler.packed import pack_sampled
from headrace.pipeline.sampler.packing import pack, unpack
from headrace.pipeline.sampler.pages import BIN
from headrace.pipeline.sampler.programs import Programs
from headrace.pipeline.sampler.rows import (
    NOBODY,
    DecodeInput,
    RowPlan,
    Rows,
    RowUpdate,
    idle_chunk,
    idle_decode,
    idle_rows,
    no_update,
)
from headrace.pipeline.sampler.transfer import PageData
from headrace.pipeline.sampler.turns import SampledBlock
from headrace.pipeline.types import Float32s, Int32s, SampleRequest

VOCAB = 12
STOP = 1
PREFILL, DECODE = 1, 2  # who wrote a cell

Key = tuple[int, int]


class Cell(NamedTuple):
    """One cached position."""

    token: int
    version: int
    writer: int
    mark: int


EMPTY = Cell(-1, -1, 0, 0)
NOT_YET = Cell(-2, -2, 0, 0)  # what rows leave where their next step writes


def after(before: Cell, token: int, version: int, writer: int) -> Cell:
    """The cell that follows another one in a text."""
    mark = hash((before.mark, token, version, writer)) % 2**61
    return Cell(token, version, writer, mark)


def draw(key: Key, position: int, last: Cell) -> tuple[int, float]:
    """The token at a position and its logprob: of the key and of the whole text before it."""
    token = hash((*key, position, last.mark)) % VOCAB
    return token, -float(last.mark % 2**20)


@dataclass
class Cells:
    """The state on the device, changed in place.

    Attributes:
      pages: i64[P, page, 4], the pages of all shards one after the other.
      drawn: by random key, the tokens drawn so far by position.
      prefilled: cells that prefill wrote.
    """

    pages: np.ndarray
    rows: Rows
    drawn: dict[Key, dict[int, int]] = field(default_factory=dict)
    prompts: dict[Key, Int32s] = field(default_factory=dict)
    prefilled: int = 0
    extracted: int = 0


@dataclass
class CellViews:
    """The rows' windows.

    Attributes:
      tenures: i32[S], whose they are.
      cells: i64[S, W, 4].
    """

    tenures: np.ndarray
    cells: np.ndarray


@dataclass
class CellDevice:
    """The programs of the sampler over cells. A policy's weights are its version."""

    config: SamplerConfig
    shards: int = 1

    def __post_init__(self) -> None:
        count = self.shards * self.config.num_pages(self.shards)
        pages = np.tile(np.array(EMPTY), (count, self.config.page_tokens, 1))
        rows = idle_rows(self.config, VOCAB)
        self.state = Cells(pages, Rows(*(field for field in rows)))

    def programs(self) -> Programs:
        windows = self.config.windows
        return Programs(
            shards=self.shards,
            initial_state=lambda: self.state,
            no_update=lambda: pack(no_update(self.config, VOCAB)),
            place=int,
            prefill={window: partial(self.prefill, window=window) for window in windows},
            views={window: partial(self.views, window) for window in windows},
            decode={window: partial(self.decode, window=window) for window in windows},
            duplicate=self.duplicate,
            extract=self.extract,
            insert=self.insert,
        )

    def prefill(self, version: int, state: Cells, packed: Int32s, *, window: int) -> Cells:
        chunk = unpack(packed, idle_chunk(self.config, window))
        size, lanes = self.config.prefill_tokens, self.config.prefill_lanes
        written: set[tuple[int, int]] = set()
        # All lanes write before any reads, so a later piece of a text may read an earlier one.
        for lane in np.argsort(chunk.starts, kind="stable").tolist():
            shard = lane // (lanes // self.shards)
            start, first, end = (int(of[lane]) for of in (chunk.starts, chunk.first, chunk.end))
            assert start % size == 0
            for position in range(first, end):
                assert start <= position < start + size
                place = self._place(shard, chunk.tables[lane], position)
                assert place not in written, "a position was prefilled twice"
                written.add(place)
                before = self._before(shard, chunk.tables[lane], position)
                token = int(chunk.tokens[lane, position - start])
                state.pages[place] = after(before, token, version, PREFILL)
                state.prefilled += 1
        return state

    def views(self, window: int) -> CellViews:
        rows = self.config.rows
        return CellViews(np.full(rows, NOBODY), np.tile(np.array(EMPTY), (rows, window, 1)))

    def decode(
        self, version: int, state: Cells, views: CellViews, inputs: DecodeInput, *, window: int
    ) -> tuple[Cells, CellViews, Int32s]:
        assert window == views.cells.shape[1]
        like = idle_decode(self.config, VOCAB, window)
        self._update(unpack(inputs.update, like.update))
        plan = unpack(inputs.plan, like.plan)
        self._refresh(views, plan)
        rows, shape = state.rows, (self.config.rows, self.config.decode_tokens)
        token, counts = np.zeros(shape, np.int32), np.zeros(self.config.rows, np.int32)
        logprob = np.zeros(shape, np.float32)
        for row in np.flatnonzero(plan.served & rows.active).tolist():
            table, view = plan.tables[row], views.cells[row]
            self._check_text(row, table, view)
            for step in range(self.config.decode_tokens):
                if rows.active[row]:
                    counts[row] += 1
                    token[row, step], logprob[row, step] = self._one_token(
                        version, row, table, view
                    )
        within = np.flatnonzero(rows.position < window)
        views.cells[within, rows.position[within]] = NOT_YET
        draws = Draw(token, logprob, np.zeros_like(logprob), None)
        return state, views, pack_sampled(SampledBlock(draws, counts, rows.active))

    def duplicate(self, state: Cells, sources: Int32s, targets: Int32s) -> Cells:
        state.pages[self._global(targets)] = state.pages[self._global(sources)]
        return state

    def extract(self, state: Cells, pages: Int32s, shard: int) -> PageData:
        state.extracted += 1
        data = np.split(state.pages[self._global(pages)], self.shards)[shard]
        return PageData([data], data[..., 0])

    def insert(self, state: Cells, pages: Int32s, data: PageData) -> Cells:
        [cells] = data.caches
        state.pages[self._global(pages)] = np.concatenate([cells] * self.shards)
        return state

    def _update(self, update: RowUpdate) -> None:
        for mine, new in zip(self.state.rows[:-1], update.rows[:-1], strict=True):
            mine[update.changed] = new[update.changed]

    def _refresh(self, views: CellViews, plan: RowPlan) -> None:
        for row in np.flatnonzero(plan.served & (plan.tenures != views.tenures)).tolist():
            views.cells[row] = self._window(row, plan.tables[row])
            views.tenures[row] = plan.tenures[row]

    def _window(self, row: int, table: Int32s) -> np.ndarray:
        """i64[W, 4], the cells of a row's pages."""
        first = self._shard_of(row) * self.config.num_pages(self.shards)
        return self.state.pages[first + table].reshape(-1, len(EMPTY))

    def _one_token(
        self, version: int, row: int, table: Int32s, view: np.ndarray
    ) -> tuple[int, float]:
        rows, shard = self.state.rows, self._shard_of(row)
        position, key = int(rows.position[row]), key_of(rows, row)
        before = Cell(*view[position - 1].tolist()) if position else EMPTY
        cell = after(before, int(rows.token[row]), version, DECODE)
        view[position] = self.state.pages[self._place(shard, table, position)] = cell
        token, logprob = draw(key, position + 1, cell)
        self.state.drawn.setdefault(key, {})[position + 1] = token
        rows.token[row], rows.position[row] = token, position + 1
        full = position + 2 >= rows.limit[row]
        rows.active[row] = not full and token not in rows.stop_ids[row]
        return token, logprob

    def _check_text(self, row: int, table: Int32s, view: np.ndarray) -> None:
        """What the row reads is its own text, each position computed from the one before."""
        rows = self.state.rows
        key, position = key_of(rows, row), int(rows.position[row])
        prompt, drawn = self.state.prompts[key], self.state.drawn.get(key, {})
        assert rows.prompt[row] == len(prompt)
        text = [*prompt.tolist(), *(drawn[at] for at in range(len(prompt), position + 1))]
        assert len(text) == position + 1
        assert rows.token[row] == text[-1]
        assert BIN not in table[: -(-position // self.config.page_tokens)]
        pages = self._window(row, table)
        assert np.array_equal(view[:position], pages[:position]), "a view is stale"
        cell = EMPTY
        for at, token in enumerate(text[:-1]):
            found = Cell(*view[at].tolist())
            assert found.token == token, f"position {at} of {text} holds {found}"
            cell = after(cell, token, found.version, found.writer)
            assert found == cell, f"position {at} was computed from another text"

    def _before(self, shard: int, table: Int32s, position: int) -> Cell:
        return self._cell(shard, table, position - 1) if position else EMPTY

    def _cell(self, shard: int, table: Int32s, position: int) -> Cell:
        return Cell(*self.state.pages[self._place(shard, table, position)].tolist())

    def _place(self, shard: int, table: Int32s, position: int) -> tuple[int, int]:
        slot, offset = divmod(position, self.config.page_tokens)
        assert table[slot] != BIN
        return shard * self.config.num_pages(self.shards) + int(table[slot]), offset

    def _shard_of(self, row: int) -> int:
        return row // (self.config.rows // self.shards)

    def _global(self, pages: Int32s) -> np.ndarray:
        """Page numbers of each shard as those of the whole pool."""
        first = np.arange(self.shards)[:, None] * self.config.num_pages(self.shards)
        return (pages.reshape(self.shards, -1) + first).reshape(-1)


def key_of(rows: Rows, row: int) -> Key:
    first, second = rows.key[row].tolist()
    return first, second


class Alone(NamedTuple):
    """What a request gets that nobody disturbs, and the cells it leaves."""

    tokens: list[int]
    logprobs: Float32s
    cells: list[Cell]


def alone(
    request: SampleRequest, cached: list[Cell], *, budget: int, stops: Callable[[list[int]], bool]
) -> Alone:
    """Compute a turn of a pinned request in a loop of its own.

    Args:
      cached: what the turn before left.
      budget: most tokens that fit.
      stops: whether tokens end a turn.
    """
    prompt, version = request.tokens, request.version
    assert version is not None
    cells = list(cached)
    for token in prompt[len(cells) : -1].tolist():
        cells.append(after(cells[-1] if cells else EMPTY, token, version, PREFILL))
    tokens: list[int] = []
    logprobs: list[float] = []
    last = int(prompt[-1])
    while len(tokens) < budget and not stops(tokens):
        cells.append(after(cells[-1] if cells else EMPTY, last, version, DECODE))
        last, logprob = draw(request.key, len(cells), cells[-1])
        tokens.append(last)
        logprobs.append(logprob)
    return Alone(tokens, np.array(logprobs, np.float32), cells)
