"""Functions that a user gives to an adapter, and that do harm when they read a certain word."""

import time


def read(text: str) -> str:
    """Read an answer, or say what another player does."""
    if "crash" in text:
        raise RuntimeError("the engine is on fire")
    if "hang" in text:
        time.sleep(600.0)
    return "[1]"
