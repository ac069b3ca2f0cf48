"""The per-row numbers of the decode program, the same record on the host and on the device."""

from typing import Any, NamedTuple

import numpy as np

from .config import SamplerConfig
from .options import DrawOptions, neutral_options
from .pages import BIN

NO_STOP = -1  # pads the stop ids; no token has this id
NOBODY = 0  # the tenure of an idle row
FIRST_PAGE = 2  # where a packed `RowPlan` has the pages: each row's two other numbers are before


class Rows(NamedTuple):
    """One entry a row; a pytree of NumPy arrays on the host, of JAX arrays on the device.

    Attributes:
      token: i32[S], the last token.
      position: i32[S], its absolute position.
      active: bool[S], whether the row decodes.
      prompt: i32[S], the length of the request's prompt; what follows is sampled.
      limit: i32[S], the length at which the sequence ends.
      key: u32[S, 2], the trajectory's random key.
      stop_ids: i32[S, n_stop], padded with `NO_STOP`.
      single: bool[S], whether the row samples one token a dispatch.
      options: how its tokens are drawn.
    """

    token: Any
    position: Any
    active: Any
    prompt: Any
    limit: Any
    key: Any
    stop_ids: Any
    single: Any
    options: DrawOptions


class RowUpdate(NamedTuple):
    """New numbers for some rows, applied before the first token of a dispatch.

    Attributes:
      changed: bool[S], which rows take the new numbers.
      rows: the new numbers; those of unchanged rows are ignored.
    """

    changed: Any
    rows: Rows


class RowPlan(NamedTuple):
    """Which rows one decode dispatch serves, and where their texts are.

    Attributes:
      served: bool[S], the rows that sample; idle ones may be among them.
      tenures: i32[S], another number each time that a row starts; `NOBODY` for idle ones.
      tables: i32[S, n], the pages of each served row's window.
    """

    served: Any
    tenures: Any
    tables: Any


class DecodeInput(NamedTuple):
    """What one decode dispatch is given beside weights and state; each packed, on the way.

    Attributes:
      update: a `RowUpdate`, the rows that changed since the last dispatch, of whatever version.
      plan: a `RowPlan`.
    """

    update: Any
    plan: Any


class PrefillChunk(NamedTuple):
    """One prefill dispatch: R lanes, each a window of C positions of one text.

    The window of a lane starts at a multiple of C, and a token stands in it at its position
    modulo C, however the text was cut. Lanes may belong to one text.

    Attributes:
      tokens: i32[R, C].
      starts: i32[R], the position of the lane's first token, a multiple of C.
      first: i32[R], the first position to write.
      end: i32[R], the position after the last one to write; an idle lane writes none.
      tables: i32[R, n], the pages of the text's window.
    """

    tokens: Any
    starts: Any
    first: Any
    end: Any
    tables: Any


def idle_rows(config: SamplerConfig, vocab_size: int) -> Rows:
    """Make the numbers of rows that are all idle."""
    rows = config.rows
    return Rows(
        token=np.zeros(rows, np.int32),
        position=np.zeros(rows, np.int32),
        active=np.zeros(rows, np.bool_),
        prompt=np.zeros(rows, np.int32),
        limit=np.zeros(rows, np.int32),
        key=np.zeros((rows, 2), np.uint32),
        stop_ids=np.full((rows, config.max_stop_ids), NO_STOP, np.int32),
        single=np.zeros(rows, np.bool_),
        options=neutral_options(rows, config.option_sizes(vocab_size)),
    )


def no_update(config: SamplerConfig, vocab_size: int) -> RowUpdate:
    """Make an update that changes nothing."""
    return RowUpdate(np.zeros(config.rows, np.bool_), idle_rows(config, vocab_size))


def idle_decode(config: SamplerConfig, vocab_size: int, window: int) -> DecodeInput:
    """Make the input of a decode dispatch that serves no row."""
    plan = RowPlan(
        served=np.zeros(config.rows, np.bool_),
        tenures=np.full(config.rows, NOBODY, np.int32),
        tables=np.full((config.rows, window // config.page_tokens), BIN, np.int32),
    )
    return DecodeInput(no_update(config, vocab_size), plan)


def idle_chunk(config: SamplerConfig, window: int) -> PrefillChunk:
    """Make a prefill dispatch in which every lane is idle."""
    lanes = config.prefill_lanes
    return PrefillChunk(
        tokens=np.zeros((lanes, config.prefill_tokens), np.int32),
        starts=np.zeros(lanes, np.int32),
        first=np.zeros(lanes, np.int32),
        end=np.zeros(lanes, np.int32),
        tables=np.full((lanes, window // config.page_tokens), BIN, np.int32),
    )
