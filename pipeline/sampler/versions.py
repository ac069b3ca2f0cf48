"""Which policy versions must stay alive: the newest, those held, and those with a request.

This is trio's side of the matter and has the say: the engine keeps the weights of a version
until it is told to drop them. So what may be held is known at once, and a version can't
vanish between the question for it and the hold.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..types import NO_VERSION


class LiveVersions:
    """Counts who needs each version."""

    def __init__(self, drop: Callable[[int], None]):
        """Args:
        drop: called once for each version that isn't the newest any more and has no user.
        """
        self._drop = drop
        self._newest = NO_VERSION
        self._holds: Counter[int] = Counter()
        self._users: Counter[int] = Counter()  # holds and requests

    @property
    def newest(self) -> int:
        """The version published last, `NO_VERSION` before the first."""
        return self._newest

    def check(self, version: int) -> None:
        """Refuse a version that is neither the newest nor held.

        Raises:
          ValueError: with the version, the allowed ones and what to do.
        """
        allowed = sorted({self._newest, *self._holds} - {NO_VERSION})
        if version in allowed:
            return
        if not allowed:
            raise ValueError(
                f"version must be a published one, got {version} before the first was; "
                "publish, or leave the version out (None), which waits"
            )
        raise ValueError(
            f"version must be the newest or a held one, of {allowed}, got {version}; enter hold("
            f"{version}) while it is the newest, and leave it after the last request"
        )

    def publish(self, version: int) -> None:
        """Note that a version is now the newest."""
        previous, self._newest = self._newest, version
        if previous != NO_VERSION:
            self._drop_unless_needed(previous)

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Keep a version, which requests may ask for, within the context.

        Raises:
          ValueError: where it is neither the newest nor held.
        """
        self.check(version)
        self._holds[version] += 1
        try:
            with self.use(version):
                yield
        finally:
            _decrement(self._holds, version)

    @contextmanager
    def use(self, version: int | None) -> Iterator[None]:
        """Keep the version of a request, which may outlive the hold, within the context."""
        if version is None:
            yield
            return
        self._users[version] += 1
        try:
            yield
        finally:
            _decrement(self._users, version)
            self._drop_unless_needed(version)

    def _drop_unless_needed(self, version: int) -> None:
        if version != self._newest and version not in self._users:
            self._drop(version)


def _decrement(counter: Counter[int], version: int) -> None:
    counter[version] -= 1
    if counter[version] == 0:
        del counter[version]
