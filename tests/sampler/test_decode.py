"""The decode program's mask: what isn't served neither advances nor changes, bit for bit."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sampler.decode import Decoded
from headrace.pipeline.sampler.rows import RowUpdate, idle_chunk, idle_rows, no_update
from headrace.pipeline.sampler.state import SamplerState
from headrace.pipeline.types import Bools
from tests.sampler.helpers import CONFIG, STOP, VOCAB, native_programs, sampler_params

WINDOW = CONFIG.windows[-1]
ALL = np.ones(CONFIG.rows, np.bool_)
Masks = st.lists(st.booleans(), min_size=CONFIG.rows, max_size=CONFIG.rows)


@cache
def started() -> SamplerState:
    """Rows that differ in everything, one of them idle, on the host; one dispatch old."""
    rng = np.random.default_rng(0)
    state = native_programs().initial_state()
    for lanes in ([0, 1], [2, 3]):
        chunk = idle_chunk(CONFIG)
        chunk.tokens[:] = rng.integers(0, VOCAB, chunk.tokens.shape)
        chunk.rows[:] = lanes
        state = native_programs().prefill[WINDOW](sampler_params(0), state, chunk)
    rows = idle_rows(CONFIG)
    rows.token[:] = rng.integers(0, VOCAB, CONFIG.rows)
    rows.position[:] = [4, 4, 3, 2, 0]
    rows.active[:] = [True, True, True, True, False]
    rows.limit[:] = [20, 24, 7, 9, 20]
    rows.key[:] = rng.integers(0, 2**32, (CONFIG.rows, 2), np.uint32)
    rows.temperature[:] = [1.0, 0.5, 2.0, 0.0, 1.0]
    rows.stop_ids[:, 0] = STOP
    return run(state, ALL, RowUpdate(ALL, rows))[0]


def run(
    state: SamplerState, served: Bools, update: RowUpdate | None = None, *, version: int = 0
) -> tuple[SamplerState, Decoded]:
    """Decode once; the result is on the host, so the same state can be used again."""
    program = native_programs().decode[WINDOW]
    update = no_update(CONFIG) if update is None else update
    on_device = jax.tree.map(jnp.array, state)
    return jax.device_get(program(sampler_params(version), on_device, update, served))


def assert_equal_rows(left: Any, right: Any, which: Bools) -> None:
    """Compare all numbers and the whole cache of some rows."""

    def compare(one: np.ndarray, other: np.ndarray) -> None:
        np.testing.assert_array_equal(one[which], other[which])

    jax.tree.map(compare, left, right)


@given(Masks, st.integers(0, 1))
def test_a_dispatch_serves_its_rows_and_leaves_the_others_as_they_are(
    mask: list[bool], version: int
) -> None:
    served = np.array(mask)
    before = started()
    after, decoded = run(before, served, version=version)
    assert_equal_rows(after, before, ~served)
    np.testing.assert_array_equal(decoded.active[~served], before.rows.active[~served])
    assert not decoded.was_active[:, ~served].any()
    expected, expected_decoded = run(before, ALL, version=version)
    assert_equal_rows(after, expected, served)
    np.testing.assert_array_equal(decoded.was_active, expected_decoded.was_active & served)
    for left, right in zip(decoded[:2], expected_decoded[:2], strict=True):
        np.testing.assert_array_equal(left[decoded.was_active], right[decoded.was_active])


@given(Masks)
def test_two_dispatches_of_disjoint_rows_are_one_of_both_in_either_order(mask: list[bool]) -> None:
    first = np.array(mask)
    both, _ = run(started(), ALL)
    for one in (first, ~first):
        half, _ = run(started(), one)
        whole, _ = run(half, ~one)
        assert_equal_rows(whole, both, ALL)


@given(Masks)
def test_an_update_reaches_rows_that_are_not_served(mask: list[bool]) -> None:
    served = np.array(mask)
    update = RowUpdate(~served, idle_rows(CONFIG))
    after, decoded = run(started(), served, update)
    assert not after.rows.active[~served].any()
    assert not decoded.active[~served].any()
    expected, _ = run(started(), served)
    assert_equal_rows(after, expected, served)
