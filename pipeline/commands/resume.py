"""`headrace resume`: go on with a run of any command that trains."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError, HeadraceError
from ..observe.run_directory import RunDirectory
from ..tables import read_toml
from . import offline, train
from .messages import explain
from .together import ended


def resume(run: str, flags: Sequence[str], began_seconds: float) -> int:
    """Go on with a run from its last checkpoint, or from the beginning where there is none.

    Args:
      run: its directory.
      began_seconds: of `time.monotonic()` when the command started.
    """
    try:
        directory = RunDirectory.reopen(Path(run))
        table = read_toml(directory.config_path)
        if "rollout" in table:
            return train.go_on(directory, flags, began_seconds)
        if "data" in table:
            return offline.go_on(directory, table, flags, began_seconds)
        raise ConfigError(
            f"{directory.config_path} must have the settings of a run, with [rollout] or "
            f"[data], got {', '.join(table) or 'none'}; put it back"
        )
    except (HeadraceError, BaseExceptionGroup) as error:
        return ended(explain(error))
