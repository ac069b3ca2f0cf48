"""Every page of a memory is accounted for, from the holders' side."""

from collections import Counter
from collections.abc import Iterable

from headrace.pipeline.sampler.memory import Memory
from headrace.pipeline.sampler.pages import BIN
from headrace.pipeline.sampler.sequence import Sequence


def assert_conserved(memory: Memory, busy: Iterable[list[int]]) -> None:
    """Compare the pool's counts with who holds what.

    Args:
      busy: the pages of each request with a row.
    """
    pool, idle = memory._pool, list(memory._idle.values())
    busy_holds = Counter(page for pages in busy for page in pages)
    holds = busy_holds + Counter(page for sequence in idle for page in held(sequence))
    assert not any(len(sequence.pages) for sequence in idle if sequence.copy is not None)
    free, loose = pool._free, list(pool._loose)
    pages = [*free, *loose, *holds]
    assert sorted(pages) == list(range(BIN + 1, memory.capacity + 1)), "a page has two owners"
    counted = pool._users.keys()
    assert counted == pool._busy.keys()
    for page in pages:
        if page in counted:
            assert (pool._users[page], pool._busy[page]) == (holds[page], busy_holds[page])
        else:
            assert holds[page] == (page not in free), "several hold what isn't counted"
    assert not counted & set(free)
    assert pool.busy == len(busy_holds)
    assert memory.available == memory.capacity - len(busy_holds)
    assert set(loose) <= set(memory._index._places) <= counted


def held(sequence: Sequence) -> list[int]:
    """The pages of a sequence, none twice."""
    pages = sequence.held
    assert len(set(pages)) == len(pages)
    return pages
