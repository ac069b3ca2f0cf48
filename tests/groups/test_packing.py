"""Law 10: packing round-trips; and its bounds hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.packing import PackItem, microbatches_needed, pack
from headrace.pipeline.types import NOT_RECORDED, TrainBatch

OF_TOKEN = (3, 2)  # layers, experts of a token in each


def make_item(number: int, tokens: int) -> PackItem:
    """A sequence like no other, so that a mix-up shows."""
    steps = np.arange(tokens)
    return PackItem(
        tokens=(1000 * (number + 1) + steps).astype(np.int32),
        loss_mask=(steps + number) % 3 == 0,
        rollout_logprobs=-(number + 1 + steps / 1000).astype(np.float32),
        advantages=np.full(tokens, number - 1.5, np.float32),
        log_kept_mass=-(number + 2 + steps / 500).astype(np.float32),
        lags=(number + steps).astype(np.int32),
        experts=(number + np.arange(6 * tokens)).reshape(tokens, *OF_TOKEN).astype(np.int16),
    )


def unpack(batch: TrainBatch) -> list[PackItem]:
    """Cut the segments out of the rows again."""
    items = []
    for at in np.ndindex(batch.tokens.shape[:2]):
        for segment in range(1, int(batch.segment_ids[at].max()) + 1):
            inside = batch.segment_ids[at] == segment
            assert np.array_equal(batch.positions[at][inside], np.arange(inside.sum()))
            assert np.all(np.diff(np.flatnonzero(inside)) == 1)  # in one piece
            items.append(
                PackItem(
                    tokens=batch.tokens[at][inside],
                    loss_mask=batch.loss_mask[at][inside],
                    rollout_logprobs=batch.rollout_logprobs[at][inside],
                    advantages=batch.advantages[at][inside],
                    log_kept_mass=batch.log_kept_mass[at][inside],
                    lags=batch.lags[at][inside],
                    experts=batch.experts[at][inside],
                )
            )
    return items


def contents(items: list[PackItem]) -> list[tuple[bytes, ...]]:
    return sorted(tuple(array.tobytes() for array in vars(item).values()) for item in items)


def rows_of_naive_first_fit(lengths: list[int], row_tokens: int) -> int:
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        for row, used in enumerate(rows):
            if used + length <= row_tokens:
                rows[row] += length
                break
        else:
            rows.append(length)
    return len(rows)


LENGTHS = st.lists(st.integers(1, 20), max_size=60)


@given(LENGTHS, st.integers(1, 4), st.integers(20, 50))
def test_law_10_packing_round_trips(lengths: list[int], rows: int, row_tokens: int) -> None:
    items = [make_item(number, tokens) for number, tokens in enumerate(lengths)]
    microbatches = microbatches_needed(len(items), 20, rows, row_tokens) + 1
    batch = pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)
    padding = batch.segment_ids == 0
    if items:
        assert contents(unpack(batch)) == contents(items)
        assert batch.experts.shape == (microbatches, rows, row_tokens, *OF_TOKEN)
        assert (batch.experts[padding] == NOT_RECORDED).all()
    for array in batch._replace(experts=padding * 0, microbatches=padding * 0):
        assert array.shape == (microbatches, rows, row_tokens)
        assert not array[padding].any()


def test_the_router_chooses_for_sequences_without_a_record() -> None:
    with_record, without = make_item(0, 3), replace(make_item(1, 2), experts=None)
    batch = pack([with_record, without], microbatches=1, rows=1, row_tokens=6)
    np.testing.assert_array_equal(batch.experts[0, 0, :3], with_record.experts)
    assert (batch.experts[0, 0, 3:] == NOT_RECORDED).all()
    assert pack([without], microbatches=1, rows=1, row_tokens=6).experts is None


@given(LENGTHS, st.integers(1, 4), st.integers(20, 50))
def test_microbatches_in_use_come_first_are_few_and_evenly_filled(
    lengths: list[int], rows: int, row_tokens: int
) -> None:
    items = [make_item(number, tokens) for number, tokens in enumerate(lengths)]
    batch = pack(items, microbatches=60, rows=rows, row_tokens=row_tokens)
    filled = (batch.segment_ids > 0).any(axis=-1).sum(axis=-1)
    used = int(batch.microbatches)
    bins = rows_of_naive_first_fit(lengths, row_tokens)
    assert filled.sum() == bins
    assert used == -(-bins // rows)
    assert not filled[used:].any()
    if used:
        assert filled[:used].max() - filled[:used].min() <= 1


@given(LENGTHS, st.integers(1, 4), st.integers(20, 50))
def test_the_bound_always_suffices(lengths: list[int], rows: int, row_tokens: int) -> None:
    longest = max(lengths, default=1)
    bound = microbatches_needed(len(lengths), longest, rows, row_tokens)
    items = [make_item(number, tokens) for number, tokens in enumerate(lengths)]
    assert pack(items, microbatches=bound, rows=rows, row_tokens=row_tokens).microbatches <= bound


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(20, 50))
def test_no_smaller_bound_suffices(number: int, tokens: int, rows: int, row_tokens: int) -> None:
    bound = microbatches_needed(number, tokens, rows, row_tokens)
    items = [make_item(index, tokens) for index in range(number)]
    assert pack(items, microbatches=bound, rows=rows, row_tokens=row_tokens).microbatches == bound


@given(LENGTHS)
def test_packing_is_decided_by_the_lengths_and_their_order_alone(lengths: list[int]) -> None:
    items = [make_item(number, tokens) for number, tokens in enumerate(lengths)]
    others = [make_item(number + 7, tokens) for number, tokens in enumerate(lengths)]
    one = pack(items, microbatches=60, rows=2, row_tokens=32)
    other = pack(others, microbatches=60, rows=2, row_tokens=32)
    assert np.array_equal(one.segment_ids, other.segment_ids)
    assert np.array_equal(one.positions, other.positions)


def test_dtypes_do_not_depend_on_the_items() -> None:
    for items in ([], [make_item(0, 3)]):
        batch = pack(items, microbatches=1, rows=1, row_tokens=4)
        names = [str(array.dtype) for array in batch if array is not batch.experts]
        integers, floats = ["int32"], ["float32"]
        assert names == integers * 3 + ["bool"] + floats * 2 + integers + floats + integers
        assert batch.microbatches == len(items)
        assert not items or batch.experts.dtype == np.int16


def test_an_item_longer_than_a_row_is_refused() -> None:
    said = r"a sequence of 9 tokens does not fit into a row of 8; raise --learner\.row-tokens"
    with pytest.raises(ConfigError, match=said):
        pack([make_item(0, 9)], microbatches=1, rows=1, row_tokens=8)
    with pytest.raises(ConfigError, match=said):
        microbatches_needed(1, 9, 1, 8)


def test_too_many_items_are_refused_with_the_number_needed() -> None:
    items = [make_item(number, 5) for number in range(5)]
    with pytest.raises(ConfigError, match="5 sequences of 25 tokens need 3 microbatches"):
        pack(items, microbatches=2, rows=2, row_tokens=8)


@pytest.mark.parametrize("lengths", [(0, 0, 0, 0), (3, 3, 2, 3)])
def test_an_item_of_unequal_arrays_or_none_is_refused(lengths: tuple[int, ...]) -> None:
    tokens, mask, logprobs, advantages = lengths
    with pytest.raises(ValueError, match="must have one length >= 1"):
        PackItem(
            tokens=np.zeros(tokens, np.int32),
            loss_mask=np.zeros(mask, np.bool_),
            rollout_logprobs=np.zeros(logprobs, np.float32),
            advantages=np.zeros(advantages, np.float32),
        )
