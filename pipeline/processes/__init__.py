"""A run over several processes: the first one decides, the others follow it call by call."""

from .calls import Calls
from .join import Processes, join

__all__ = ["Calls", "Processes", "join"]
