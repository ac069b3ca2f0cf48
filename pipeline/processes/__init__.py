"""A run over several processes: the first one decides, the others follow it call by call."""

from .calls import Calls
from .join import JOIN_SECONDS, Processes, join

__all__ = ["JOIN_SECONDS", "Calls", "Processes", "join"]
