"""The errors of Headrace, one taxonomy.

A user's mistake is a `ConfigError` (exit code 2, one clear message). A stage that fails ends
the run with a `StageFailed` that names it. What goes wrong inside one episode is not an
exception but a value: see `EpisodeFailure` in `types`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class HeadraceError(Exception):
    """Base of all errors raised on purpose by Headrace."""


class ConfigError(HeadraceError):
    """A setting, a file or an argument is wrong: says the value, the range, the next action."""


class StageFailed(HeadraceError):
    """A stage of the pipeline failed; the cause is chained.

    Attributes:
      stage: the stage's name, as in the table of `pipeline`.
    """

    def __init__(self, stage: str, cause: BaseException):
        super().__init__(f"stage {stage!r} failed: {type(cause).__name__}: {cause}")
        self.stage = stage


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn an error inside into a `StageFailed`; the innermost stage gives the name."""
    try:
        yield
    except Exception as error:
        cause = _innermost(error)
        if isinstance(cause, StageFailed | ConfigError):
            raise
        raise StageFailed(name, cause) from error


def _innermost(error: BaseException) -> BaseException:
    """Unwrap groups of one exception, which nurseries make of each error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class PipelineStalled(HeadraceError):
    """Nothing can make progress any more, or too many episodes fail."""
