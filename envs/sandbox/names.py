"""Names that nothing else on the machine has."""

import re
import secrets

_LONGEST = 40


def new_name() -> str:
    """Return a random name."""
    return secrets.token_hex(6)


def safe_name(text: str) -> str:
    """Return a text as it can stand in the name of a file.

    Example:
      >>> safe_name("runs/my run 7")
      'runs-my-run-7'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[-_LONGEST:] or "run"
