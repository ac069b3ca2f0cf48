"""Limits without walls: for machines that have nothing else, and code that one trusts.

Invariant: a configuration only gets here with `allow_unsafe=True`. Programs run as this user,
in a folder that is removed afterwards; they see and may change all that this user can.
"""

from typing import Any

from .bwrap import common_settings
from .config import SandboxConfig


def settings(config: SandboxConfig, run: str) -> dict[str, Any]:
    """Return what a supervisor needs to know; see `bwrap.settings`."""
    return {**common_settings(config, run), "bwrap": "", "visible": [], "hidden": [], "links": []}
