"""Sandboxes that have started and wait: each is used by one box, once.

Invariant: a sandbox that is handed out was ready and alive a moment ago, and nobody else has
ever run anything in it.
"""

from collections.abc import Callable

from .host import Host
from .instance import Instance
from .loop import Loop

Taker = Callable[[Instance | None, str], None]  # an instance, or why there is none


class Pool:
    """Starts sandboxes ahead of need."""

    def __init__(self, loop: Loop, host: Host) -> None:
        self._loop = loop
        self._host = host
        self._warm = int(host.settings["warm"])
        self._count = 0
        self._idle: list[Instance] = []
        self._takers: list[Taker] = []
        self._starting = 0
        self.alive: set[Instance] = set()
        self._closing = False

    def take(self, taker: Taker) -> None:
        """Hand an instance to the taker: at once, or as soon as one is ready."""
        ready = [instance for instance in self._idle if not instance.is_ending]
        if ready:
            self._idle = ready[1:]
            taker(ready[0], "")
        else:
            self._takers.append(taker)
        self.refill()

    def refill(self) -> None:
        """Start what is missing: for those who wait, and to be warm."""
        missing = len(self._takers) + self._warm - len(self._idle) - self._starting
        for _ in range(0 if self._closing else missing):
            self._start()

    def close(self) -> None:
        """Kill them all, the unused ones included."""
        self._closing = True
        for instance in tuple(self.alive):
            instance.kill()

    def _start(self) -> None:
        self._count += 1
        try:
            instance = Instance(self._loop, self._host, self._count)
        except OSError as error:
            self._serve(None, str(error))
            return
        self._starting += 1
        self.alive.add(instance)

        def gone() -> None:
            self.alive.discard(instance)
            if instance in self._idle:
                self._idle.remove(instance)

        def ready() -> None:
            self._starting -= 1
            if instance.is_ready:
                self._serve(instance, "")
            else:
                self._serve(None, instance.problem or "it took too long to start")

        instance.on_gone.append(gone)
        instance.on_ready = ready

    def _serve(self, instance: Instance | None, problem: str) -> None:
        if self._takers:
            self._takers.pop(0)(instance, problem)
        elif instance is not None:
            self._idle.append(instance)
