"""The errors of Headrace, one taxonomy.

A user's mistake is a `ConfigError` (exit code 2, one clear message). A stage that fails ends
the run with a `StageFailed` that names it. What goes wrong inside one episode is not an
exception but a value: see `EpisodeFailure` in `types`.
"""

import math
from collections.abc import Iterator
from types import TracebackType

from ..envs.base import EnvironmentBroken
from ..envs.base import innermost as innermost

_KNOWN_MODULES = ("builtins", "trio")
_LONGEST_TEXT = 2000


class HeadraceError(Exception):
    """Base of all errors raised on purpose by Headrace."""


class ConfigError(HeadraceError):
    """A setting, a file or an argument is wrong: says the value, the range, the next action."""


def check(allowed: bool, setting: str, value: object, condition: str, *, hint: str = "") -> None:
    """Refuse a value of a setting; no setting may be infinite or NaN.

    Args:
      allowed: whether the value meets the condition.
      setting: `section.name`, as in a recipe.
      condition: what the value must be, after "must be".
      hint: what to do; by default, to set the setting's flag.

    Raises:
      ConfigError: with the value, the condition and the hint.

    Example:
      >>> check(-1 >= 0, "run.steps", -1, ">= 0")
      Traceback (most recent call last):
        ...
      headrace.pipeline.errors.ConfigError: run.steps must be >= 0, got -1; set --run.steps
    """
    finite = not isinstance(value, float) or math.isfinite(value)
    if allowed and finite:
        return
    hint = hint or f"set --{setting.replace('_', '-')}"
    raise ConfigError(f"{setting} must be {condition}, got {value!r}; {hint}")


class StageFailed(HeadraceError):
    """A stage of the pipeline failed; the cause is chained.

    Attributes:
      stage: the stage's name, as in the table of `pipeline`.
    """

    def __init__(self, stage: str, cause: BaseException):
        super().__init__(f"stage {stage!r} failed: {describe(cause)}")
        self.stage = stage


class stage:  # noqa: N801 - reads as a keyword, as trio.fail_after does
    """A context that turns an error inside into a `StageFailed`; the innermost one gives the name.

    A class and not a generator, since every episode runs in one.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        cause = innermost(error)
        if isinstance(cause, Exception | EnvironmentBroken):
            if not isinstance(cause, StageFailed | ConfigError):
                raise StageFailed(self._name, cause) from error
            return
        for leaf in leaves(cause):
            if isinstance(leaf, SystemExit | GeneratorExit) or _is_foreign(leaf):
                leaf.add_note(f"in stage {self._name!r}")  # it passes, as whoever raised it wants


def _is_foreign(error: BaseException) -> bool:
    """Whether it is a kind of `BaseException` that neither Python nor trio has."""
    return type(error).__module__.partition(".")[0] not in _KNOWN_MODULES


def describe(error: BaseException) -> str:
    """Return an error's type and text, cut where it is long; never fails."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as worse:  # of a foreign __str__; nothing of it is worth a run
        why = type(worse).__name__
        return f"{type(error).__name__}, which fails to describe itself: {why}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def reason(error: Exception) -> str:
    """Say why a file that the message names already can't be used."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in an exception, which may be a group of groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def ours_in(error: BaseException) -> Iterator["HeadraceError"]:
    """Yield the errors of Headrace in an exception, which may be a group."""
    return (leaf for leaf in leaves(error) if isinstance(leaf, HeadraceError))


class PipelineStalled(HeadraceError):
    """Nothing can make progress any more, or too many episodes fail."""
