"""The decode program's mask: what isn't served neither advances nor changes, bit for bit."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.logits import no_draws
from headrace.pipeline.sampler.packed import unpack_sampled
from headrace.pipeline.sampler.packing import pack, unpack
from headrace.pipeline.sampler.pages import BIN
from headrace.pipeline.sampler.rows import (
    NOBODY,
    DecodeInput,
    RowPlan,
    Rows,
    RowUpdate,
    idle_chunk,
    idle_rows,
    no_update,
)
from headrace.pipeline.sampler.state import SamplerState, Views
from headrace.pipeline.sampler.turns import SampledBlock, words_of_draw
from headrace.pipeline.types import Bools
from tests.sampler.helpers import CONFIG, STOP, VOCAB, native_programs, sampled, sampler_params

[WINDOW] = CONFIG.windows
ALL = np.ones(CONFIG.rows, np.bool_)
TENURES = np.arange(1, CONFIG.rows + 1, dtype=np.int32)
Masks = st.lists(st.booleans(), min_size=CONFIG.rows, max_size=CONFIG.rows)
# Three pages a row, in no order; the others belong to nobody.
OWN = np.random.default_rng(5).permutation(np.arange(1, CONFIG.num_pages()))[:15].reshape(5, 3)
TABLES = np.full((CONFIG.rows, WINDOW // CONFIG.page_tokens), BIN, np.int32)
TABLES[:, :3] = OWN


class Kept(NamedTuple):
    """What one dispatch leaves to the next, on the host."""

    state: SamplerState
    views: Views

    @property
    def rows(self) -> Rows:
        """Their numbers."""
        rows: Rows = unpack(self.state.rows, idle_rows(CONFIG, VOCAB))
        return rows


@cache
def started() -> Kept:
    """Rows that differ in everything, one of them idle; one dispatch old."""
    rng = np.random.default_rng(0)
    state = native_programs().initial_state()
    for lanes in ([0, 1], [2, 3]):
        chunk = idle_chunk(CONFIG, WINDOW)
        chunk.tokens[:] = rng.integers(0, VOCAB, chunk.tokens.shape)
        chunk.end[:] = CONFIG.prefill_tokens
        chunk.tables[:] = TABLES[lanes]
        state = native_programs().prefill[WINDOW](sampler_params(0), state, pack(chunk))
    rows = idle_rows(CONFIG, VOCAB)
    rows.token[:] = rng.integers(0, VOCAB, CONFIG.rows)
    rows.position[:] = [4, 4, 3, 2, 0]
    rows.active[:] = [True, True, True, True, False]
    rows.prompt[:] = rows.position + 1
    rows.limit[:] = [20, 24, 7, 9, 20]
    rows.key[:] = rng.integers(0, 2**32, (CONFIG.rows, 2), np.uint32)
    rows.options.temperature[:] = [1.0, 0.5, 2.0, 0.0, 1.0]
    rows.options.repetition_penalty[:] = [1.0, 2.0, 1.0, 0.5, 1.0]
    rows.options.top_p[:] = [0.5, 1.0, 1.0, 1.0, 0.9]
    rows.stop_ids[:, 0] = STOP
    views = native_programs().views[WINDOW]()
    return run(Kept(state, views), ALL, RowUpdate(ALL, rows))[0]


def run(
    kept: Kept, served: Bools, update: RowUpdate | None = None, *, version: int = 0
) -> tuple[Kept, SampledBlock]:
    """Decode once; the result is on the host, so it can be used several times.

    As the scheduler does, it knows the pages of served rows alone.
    """
    update = no_update(CONFIG, VOCAB) if update is None else update
    tables = np.where(served[:, None], TABLES, BIN)
    state, views = jax.tree.map(jnp.array, kept)
    program = native_programs().decode[WINDOW]
    inputs = DecodeInput(pack(update), pack(RowPlan(served, TENURES, tables)))
    *after, decoded = jax.device_get(program(sampler_params(version), state, views, inputs))
    return Kept(*after), unpack_draws(unpack_sampled(decoded))


def unpack_draws(block: SampledBlock) -> SampledBlock:
    """Unpack what `Turns` would keep as it is."""
    shape = CONFIG.rows, CONFIG.decode_tokens
    like = no_draws((1,), CONFIG.draws.max_top_logprobs)
    draws = unpack(block.draws.reshape(-1, words_of_draw(CONFIG)), like)
    by_row = jax.tree.map(lambda numbers: numbers.reshape(*shape, *numbers.shape[1:]), draws)
    return block._replace(draws=by_row)


def forgetful(kept: Kept) -> Kept:
    """The same with views that are nobody's, of other numbers."""
    layers = jax.tree.map(lambda window: np.full_like(window, 7), kept.views.layers)
    return Kept(kept.state, Views(np.full_like(TENURES, NOBODY), layers))


def assert_equal_rows(left: Kept, right: Kept, which: Bools) -> None:
    """Compare all numbers of some rows and all their pages, and the pages that nobody has."""

    def compare(one: np.ndarray, other: np.ndarray) -> None:
        np.testing.assert_array_equal(one[which], other[which])

    def compare_pages(one: np.ndarray, other: np.ndarray) -> None:
        axis = one.ndim - 3 if one.ndim > 2 else 0  # [K, P, page, h], or [P, page]
        same = np.setdiff1d(np.arange(1, one.shape[axis]), OWN[~which])
        np.testing.assert_array_equal(one.take(same, axis), other.take(same, axis))

    one, other = left.state, right.state
    jax.tree.map(compare, one.rows, other.rows)
    jax.tree.map(compare_pages, (one.caches, one.tokens), (other.caches, other.tokens))


@settings(max_examples=25)
@given(Masks, st.integers(0, 1))
def test_a_dispatch_serves_its_rows_and_leaves_the_others_as_they_are(
    mask: list[bool], version: int
) -> None:
    served = np.array(mask)
    before = started()
    after, decoded = run(before, served, version=version)
    assert_equal_rows(after, before, ~served)
    np.testing.assert_array_equal(decoded.active[~served], before.rows.active[~served])
    assert not decoded.num_sampled[~served].any()
    expected, expected_decoded = run(before, ALL, version=version)
    assert_equal_rows(after, expected, served)
    np.testing.assert_array_equal(decoded.num_sampled, expected_decoded.num_sampled * served)
    drawn = sampled(decoded)

    def compare(one: np.ndarray, other: np.ndarray) -> None:
        np.testing.assert_array_equal(one[drawn], other[drawn])

    jax.tree.map(compare, decoded.draws, expected_decoded.draws)


@settings(max_examples=25)
@given(Masks)
def test_two_dispatches_of_disjoint_rows_are_one_of_both_in_either_order(mask: list[bool]) -> None:
    first = np.array(mask)
    both, _ = run(started(), ALL)
    for one in (first, ~first):
        half, _ = run(started(), one)
        whole, _ = run(half, ~one)
        assert_equal_rows(whole, both, ALL)


@settings(max_examples=25)
@given(st.lists(st.tuples(Masks, st.integers(0, 1)), min_size=2, max_size=5))
def test_law_7_a_view_that_stays_gives_the_bits_of_one_that_is_copied_anew(
    dispatches: list[tuple[list[bool], int]],
) -> None:
    """Whatever rows that weren't served meanwhile, or had ended, have left in theirs."""
    kept = anew = started()
    times = np.zeros(CONFIG.rows, np.int32)
    for mask, version in dispatches:
        served = np.array(mask) & (times < 2)  # then a row is at the end of its pages
        times += served
        kept, decoded = run(kept, served, version=version)
        anew, expected = run(forgetful(anew), served, version=version)
        assert_equal_rows(kept, anew, ALL)
        drawn = sampled(expected)
        np.testing.assert_array_equal(decoded.num_sampled, expected.num_sampled)
        np.testing.assert_array_equal(decoded.draws.token[drawn], expected.draws.token[drawn])
        np.testing.assert_array_equal(decoded.draws.logprob[drawn], expected.draws.logprob[drawn])


@settings(max_examples=25)
@given(Masks)
def test_an_update_reaches_rows_that_are_not_served(mask: list[bool]) -> None:
    served = np.array(mask)
    update = RowUpdate(~served, idle_rows(CONFIG, VOCAB))
    after, decoded = run(started(), served, update)
    assert not after.rows.active[~served].any()
    assert not decoded.active[~served].any()
    expected, _ = run(started(), served)
    assert_equal_rows(after, expected, served)


def test_a_row_that_samples_one_token_rests_until_the_next_dispatch() -> None:
    rows = jax.tree.map(np.copy, started().rows)
    rows.single[:] = [True, False, True, False, False]
    before = started().rows.active
    after, decoded = run(started(), ALL, RowUpdate(ALL, rows))
    assert (decoded.num_sampled[rows.single] == before[rows.single]).all()
    assert after.rows.position[0] == rows.position[0] + 1
    assert after.rows.active[0] == (decoded.draws.token[0, 0] != STOP)
    plain, (plain_draws, *_) = run(started(), ALL)
    others = ~rows.single
    np.testing.assert_array_equal(after.rows.token[others], plain.rows.token[others])
    np.testing.assert_array_equal(decoded.draws.token[:, 0], plain_draws.token[:, 0])
