"""Records of rows in one array, and out of it again, bit for bit."""

from typing import Any, NamedTuple

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sampler.packing import pack, unpack

ROWS = 3
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2, 3), (0,))
TYPES = (np.int32, np.uint32, np.float32, np.bool_)


class Record(NamedTuple):
    """An array, some more, and one that isn't there."""

    first: Any
    others: list[Any]
    none: None = None


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bits: NaN of every kind, infinities, both zeros."""
    shape, dtype = (ROWS, *draw(st.sampled_from(SHAPES))), draw(st.sampled_from(TYPES))
    size = int(np.prod(shape))
    words = draw(st.lists(st.integers(0, 2**32 - 1), min_size=size, max_size=size))
    bits = np.array(words, np.uint32).reshape(shape)
    return bits % 2 == 1 if dtype == np.bool_ else bits.view(dtype)


def assert_bits(left: Any, right: Any) -> None:
    """The same structure, shapes, types and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@given(arrays(), st.lists(arrays(), max_size=4))
def test_what_is_unpacked_is_what_was_packed(first: np.ndarray, others: list[np.ndarray]) -> None:
    record = Record(first, others)
    packed = pack(record)
    assert packed.dtype == np.int32
    assert len(packed) == ROWS
    assert_bits(unpack(packed, record), record)


def test_a_device_packs_as_the_host_does() -> None:
    rng = np.random.default_rng(0)
    bits = [rng.integers(0, 2**32, (ROWS, *shape), np.uint32) for shape in SHAPES]
    record = Record(rng.random(ROWS) < 0.5, [*bits, bits[2].view(np.float32), bits[1].view("i4")])
    packed = jax.jit(pack)(record)
    np.testing.assert_array_equal(packed, pack(record))
    assert_bits(jax.jit(lambda words: unpack(words, record))(packed), record)


def test_the_record_may_have_another_number_of_rows_than_its_example() -> None:
    example = Record(np.zeros(1, np.float32), [])
    assert_bits(
        unpack(pack(Record(np.ones(ROWS, np.float32), [])), example).first, np.ones(3, "f4")
    )
