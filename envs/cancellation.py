"""Trio's cancellations as exceptions: in groups with others, and astray."""

import math

import trio

STRAY = "cancelled by a scope or nursery that has ended since"


def without_cancellation(error: BaseException) -> BaseException | None:
    """Return an error without the cancellations in it, of which a group may hold some.

    Returns:
      None if there is nothing else in it.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error


def is_stray(error: BaseException) -> bool:
    """Return whether this is a cancellation that no scope around the caller asked for.

    Mistakes with async generators make such ones. Left alone they end a run without any error.
    """
    return without_cancellation(error) is None and trio.current_effective_deadline() > -math.inf
