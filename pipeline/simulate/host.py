"""How a process is set up that simulates."""

import gc

_YOUNG_OBJECTS = 200_000  # made before the youngest are looked through


def collect_rarely() -> None:
    """Let garbage collection be rare: thousands of live tasks make each one slow."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 50, 1000)
