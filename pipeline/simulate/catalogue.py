"""The built-in scenarios by name."""

from collections.abc import Callable, Mapping

from .agent import agent
from .scenarios import Source, balanced

SCENARIOS: Mapping[str, Callable[[], Source]] = {"balanced": balanced, "agent": agent}
