"""The host's side of the per-row numbers: what the next dispatch is told about changed rows."""

from collections.abc import Collection

import numpy as np

from ..types import Int32s
from .config import SamplerConfig
from .occupant import Occupant
from .options import write_allowed, write_options
from .rows import NO_STOP, RowUpdate, no_update


class RowNumbers:
    """Collects what changes until a dispatch takes it."""

    def __init__(self, config: SamplerConfig, vocab_size: int):
        self._update = no_update(config, vocab_size)

    def start(self, occupant: Occupant) -> None:
        """Let the request's row decode, from its last token on."""
        row, request, rows = occupant.row, occupant.request, self._update.rows
        rows.prompt[row] = len(request.tokens)
        rows.limit[row] = occupant.limit
        rows.key[row] = request.key
        rows.stop_ids[row] = NO_STOP
        rows.stop_ids[row, : len(request.stop_ids)] = request.stop_ids
        rows.single[row] = request.sampling.constraint is not None
        write_options(rows.options, row, request.sampling, temperature=request.temperature)
        self._go_on(row, occupant.tokens)

    def constrain(self, row: int, tokens: Int32s, allowed: Collection[int]) -> None:
        """Allow only these tokens next.

        Args:
          tokens: of the row so far, prompt included.
        """
        write_allowed(self._update.rows.options, row, allowed)
        self._go_on(row, tokens)

    def silence(self, row: int) -> None:
        """Let a row stop before the next token."""
        self._update.rows.active[row] = False
        self._update.changed[row] = True

    def take(self) -> RowUpdate | None:
        """Hand over what changed since the last call; None for nothing.

        The rows go on being written: they must be packed before anything else is done here.
        """
        update = self._update
        if not update.changed.any():
            return None
        self._update = RowUpdate(np.zeros_like(update.changed), update.rows)
        return update

    def _go_on(self, row: int, tokens: Int32s) -> None:
        rows = self._update.rows
        rows.token[row], rows.position[row] = tokens[-1], len(tokens) - 1
        rows.active[row] = True
        self._update.changed[row] = True
