"""Flags that are read before the others, since they choose what the others start from."""

from collections.abc import Sequence

from ..errors import ConfigError


def take_out(flag: str, arguments: Sequence[str], what: str) -> tuple[str | None, list[str]]:
    """Take `--flag NAME` out of the arguments.

    Args:
      what: may be given, in words.

    Returns:
      The name, None where the flag isn't there, and the other arguments.

    Raises:
      ConfigError: for a flag without a name.
    """
    rest = list(arguments)
    if flag not in rest:
        return None, rest
    place = rest.index(flag)
    if place + 1 == len(rest) or rest[place + 1].startswith("--"):
        raise ConfigError(f"{flag} needs {what}")
    name = rest[place + 1]
    del rest[place : place + 2]
    return name, rest
