"""Every page of a memory is accounted for, from the holders' side."""

from collections import Counter
from collections.abc import Iterable

from headrace.pipeline.sampler.memory import Memory
from headrace.pipeline.sampler.pages import BIN, Page
from headrace.pipeline.sampler.sequence import Sequence


def assert_conserved(memory: Memory, busy: Iterable[Sequence]) -> None:
    """Compare the pool's counts with who holds what.

    Args:
      busy: the sequences of requests with a row.
    """
    pool, idle = memory._pool, list(memory._idle.values())
    busy_holds = Counter(page for sequence in busy for page in held(sequence))
    holds = busy_holds + Counter(page for sequence in idle for page in held(sequence))
    assert not any(sequence.pages for sequence in idle if sequence.copy is not None)
    free, loose = pool._free, list(pool._loose)
    numbers = [*free, *(page.number for page in loose), *(page.number for page in holds)]
    assert sorted(numbers) == list(range(BIN + 1, memory.capacity + 1)), "a page has two owners"
    for page, users in holds.items():
        assert (page.users, page.busy) == (users, busy_holds[page])
    assert all(page.users == page.busy == 0 and page.indexed for page in loose)
    assert pool.busy == len(busy_holds)
    assert memory.available == memory.capacity - len(busy_holds)
    indexed = set(memory._index._places)
    assert indexed == {page for page in [*holds, *loose] if page.indexed}


def held(sequence: Sequence) -> list[Page]:
    """The pages of a sequence, none twice."""
    pages = sequence.pages + ([] if sequence.spare is None else [sequence.spare])
    assert len(set(pages)) == len(pages)
    return pages
