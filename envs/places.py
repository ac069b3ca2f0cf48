"""How many may do something at once, counted for each trio run.

Invariant: a run that ends with its places taken, as by threads that it abandoned, takes none from
the next.
"""

import trio
from trio.lowlevel import RunVar

Places = RunVar[trio.CapacityLimiter]


def places_of_run(places: Places, count: int) -> trio.CapacityLimiter:
    """Return the limiter of this trio run; the first call makes it, with `count` places."""
    try:
        return places.get()
    except LookupError:
        limiter = trio.CapacityLimiter(count)
        places.set(limiter)
        return limiter
