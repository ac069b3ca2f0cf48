"""The host's side of the per-row numbers: what the next dispatch is told about rows and tables."""

from collections.abc import Collection

import numpy as np

from .config import SamplerConfig
from .occupant import Occupant
from .options import write_allowed, write_options
from .pages import BIN
from .rows import NO_STOP, DecodeInput, RowUpdate, copied, no_update


class RowNumbers:
    """Collects what changes until a dispatch takes it."""

    def __init__(self, config: SamplerConfig, vocab_size: int):
        self._page_tokens = config.page_tokens
        self._update = no_update(config, vocab_size)
        width = config.cache_tokens // config.page_tokens
        self._tables = np.full((config.rows, width), BIN, np.int32)  # of the decoding rows

    def start(self, occupant: Occupant) -> None:
        """Let the request's row decode, from its last token on."""
        numbers = occupant.cached.numbers()
        self._tables[occupant.row, : len(numbers)] = numbers
        self._write(occupant)

    def constrain(self, occupant: Occupant, allowed: Collection[int]) -> None:
        """Allow only these tokens next."""
        self._write(occupant)
        write_allowed(self._update.rows.options, occupant.row, allowed)

    def extend(self, occupant: Occupant, known: int) -> None:
        """Add the pages after the first ones to the table of the request's row."""
        pages = occupant.cached.pages
        self._tables[occupant.row, known : len(pages)] = [page.number for page in pages[known:]]

    def silence(self, row: int) -> None:
        """Let a row stop before the next token."""
        self._update.rows.active[row] = False
        self._update.changed[row] = True

    def clear(self, row: int) -> None:
        """Forget the table of a row."""
        self._tables[row] = BIN

    def take(self, served: list[int], window: int) -> DecodeInput:
        """Hand over what changed since the last call, for a dispatch that serves some rows."""
        update = self._update
        self._update = RowUpdate(np.zeros_like(update.changed), update.rows)
        mask = np.zeros(len(self._tables), np.bool_)
        mask[served] = True
        # The dispatch may read its arrays later than it is made; ours go on being written.
        tables = self._tables[:, : window // self._page_tokens].copy()
        return DecodeInput(RowUpdate(update.changed, copied(update.rows)), mask, tables)

    def _write(self, occupant: Occupant) -> None:
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
