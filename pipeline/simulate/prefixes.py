"""What the simulated cache still holds of trajectories that have no row now.

Invariant: `tokens` is the sum over all kept prefixes; the one used longest ago goes first.
"""

from collections import OrderedDict
from collections.abc import Hashable

_MOST_TRAJECTORIES = 2**17  # who is older than so many others won't come back


class PrefixCache:
    """Tokens by trajectory: how many were computed at some time, how many are still cached."""

    def __init__(self, *, reuse: bool):
        """Args:
        reuse: whether anything is kept at all.
        """
        self.tokens = 0
        self._reuse = reuse
        self._cached: OrderedDict[Hashable, int] = OrderedDict()
        self._computed: OrderedDict[Hashable, int] = OrderedDict()

    def put(self, key: Hashable, tokens: int, *, keep: bool) -> None:
        """Note that a trajectory's first `tokens` tokens were computed, and keep them if asked."""
        self._computed[key] = tokens
        self._computed.move_to_end(key)
        if len(self._computed) > _MOST_TRAJECTORIES:
            oldest, _ = self._computed.popitem(last=False)
            self.tokens -= self._cached.pop(oldest, 0)
        if keep and self._reuse:
            self.tokens += tokens - self._cached.pop(key, 0)
            self._cached[key] = tokens

    def take(self, key: Hashable) -> tuple[int, int]:
        """Return how many tokens are cached and how many were ever computed; keep none."""
        cached = self._cached.pop(key, 0)
        self.tokens -= cached
        return cached, self._computed.pop(key, 0)

    def touch(self, key: Hashable) -> int:
        """Make a trajectory's prefix the last to go; return its tokens."""
        if key not in self._cached:
            return 0
        self._cached.move_to_end(key)
        return self._cached[key]

    def evict(self) -> bool:
        """Give up the prefix that was used longest ago; false if there is none."""
        if not self._cached:
            return False
        _, tokens = self._cached.popitem(last=False)
        self.tokens -= tokens
        return True
