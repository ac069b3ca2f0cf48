"""How many episodes run at once: as many as keep the sampler busy, and no more.

A pure state machine. The limit grows while the sampler has room, rests while requests queue,
and shrinks when they queue too long or when the cache is short of pages: an episode more would
then only wait, age, and push others out. The environments' own time needs no estimate: slow
ones leave rows idle, so the limit grows.
"""

from dataclasses import dataclass, replace

from ..types import SamplerLoad

GROWTH = 1.25  # a turnover: fast at the start, where nothing is known yet
QUEUE_SHARE = 0.5  # of the rows: a queue that long keeps them busy for sure
LOW_PAGES = 0.1  # share of free pages below which nothing more may come
TRIM, CUT = 0.95, 0.75  # for a long queue; for a preemption, which wastes work


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The limit, and what was seen since it changed.

    Attributes:
      cap: the largest limit.
      limit: episodes that may run at once, as a float so that it can grow by shares.
      ended: episodes that ended since the limit changed.
      preemptions: the sampler's count when the limit changed.
    """

    cap: int
    limit: float
    ended: int = 0
    preemptions: int = 0


def start(cap: int, load: SamplerLoad) -> Concurrency:
    """Begin with two episodes a row: one may wait for its environment while the other samples.

    Args:
      cap: >= 1.
    """
    return Concurrency(cap, float(min(cap, 2 * load.rows)), preemptions=load.preemptions)


def episode_ended(state: Concurrency, load: SamplerLoad) -> Concurrency:
    """Count an ended episode; once in a turnover, move the limit.

    A turnover is as many ended episodes as may run at once. Preemptions act after a quarter of
    one: those that follow at once are of work that is still there from before.

    Args:
      load: the sampler's, now.

    Example:
      >>> idle = SamplerLoad(rows=4, rows_busy=2, waiting=0)
      >>> state = start(100, idle)
      >>> for _ in range(8):
      ...     state = episode_ended(state, idle)
      >>> state.limit
      10.0
    """
    state = replace(state, ended=state.ended + 1)
    if load.preemptions > state.preemptions and state.ended >= state.limit / 4:
        return _moved(state, CUT, load)
    if state.ended < state.limit:
        return state
    if load.waiting > QUEUE_SHARE * load.rows or load.pages_free < LOW_PAGES:
        return _moved(state, TRIM, load)
    if load.waiting == 0 or load.rows_busy < load.rows:
        return _moved(state, GROWTH, load)
    return _moved(state, 1.0, load)


def _moved(state: Concurrency, factor: float, load: SamplerLoad) -> Concurrency:
    limit = min(float(state.cap), max(1.0, state.limit * factor))
    return Concurrency(state.cap, limit, preemptions=load.preemptions)
