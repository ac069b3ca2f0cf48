"""How a run uses a model's chat template."""

import datetime
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ConfigError, check
from .toolcalls import FORMATS

DETECT = "detect"


@dataclass(frozen=True)
class TemplateConfig:
    """How a model's chat template is used."""

    history: Literal["keep", "split"] = "keep"
    """Where the template would rewrite earlier turns: keep what was sampled, or go on with the
    rewritten text as a new sample of the same episode."""
    tool_format: str = DETECT
    """How the model writes tool calls; by default as its template shows."""
    thinking: Literal["default", "on", "off"] = "default"
    """Switches reasoning on or off in templates that have a switch for it."""
    date: str = "2026-01-01"
    """What the template reads as today, year-month-day: the same in all of a run."""

    def __post_init__(self) -> None:
        formats = (DETECT, *FORMATS)
        known = self.tool_format in formats
        hint = "choose one of these"
        check(known, "chat.tool_format", self.tool_format, f"in {formats}", hint=hint)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigError(
                f"chat.date must be a date like 2026-01-01, got {self.date!r}: {error}"
            ) from None

    @property
    def variables(self) -> dict[str, Any]:
        """What the template may read of it."""
        if self.thinking == "default":
            return {}
        return dict.fromkeys(("enable_thinking", "thinking"), self.thinking == "on")
