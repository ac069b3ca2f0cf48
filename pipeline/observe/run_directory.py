"""The folder in which a run leaves its files. Nothing that exists is ever overwritten.

The files of an interrupted run are whole: `config.toml` and `summary.json` appear by a rename,
`metrics.jsonl` and `trajectories.jsonl` grow by whole lines.
"""

import errno
import fcntl
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from ...envs.sandbox.audit import FILE_NAME as AUDIT_FILE
from ..errors import ConfigError
from ..tables import read_toml
from .sinks import JsonlSink, to_json

CONFIG_FILE = "config.toml"
POLICY_FOLDER = "policy"
CHECKPOINTS_FOLDER = "checkpoints"
_SUMMARY, _METRICS, _TRAJECTORIES = "summary.json", "metrics.jsonl", "trajectories.jsonl"
_FILES_OF_A_RUN = (
    POLICY_FOLDER,
    CHECKPOINTS_FOLDER,
    AUDIT_FILE,
    CONFIG_FILE,
    _SUMMARY,
    _METRICS,
    _TRAJECTORIES,
)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of some file systems
# ValueError: a NUL character; RuntimeError: the home folder of an unknown user.
_PATH_ERRORS = (OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class RunDirectory:
    """A folder that belongs to one run; make it with `create` or `create_default`.

    Attributes:
      path: an absolute one, as environments may change the working directory.
    """

    path: Path

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make the folder, or take an existing one that holds no run; `~` is the home folder.

        Raises:
          ConfigError: if it holds a run already, or can't be made or written to.
        """
        try:
            path = path.expanduser().absolute()
            path.mkdir(parents=True, exist_ok=True)
        except _PATH_ERRORS as error:
            raise _unusable(path, error) from error
        for name in _FILES_OF_A_RUN:
            if os.path.lexists(path / name):
                raise ConfigError(
                    f"run directory must not hold a run, but {path} has a {name}; "
                    f"set --run.dir to a new folder, or move the old run away"
                )
        if not os.access(path, os.W_OK | os.X_OK):
            raise _unusable(path, PermissionError("no permission to write"))
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> "RunDirectory":
        """Take the folder of a run, to go on with it.

        Raises:
          ConfigError: if it holds no run, or can't be written to.
        """
        if not (path / CONFIG_FILE).is_file():
            raise ConfigError(
                f"{path} holds no run: it has no {CONFIG_FILE}; give a run directory"
            )
        if not os.access(path, os.W_OK | os.X_OK):
            raise _unusable(path, PermissionError("no permission to write"))
        return cls(path.absolute())

    @classmethod
    def create_for(cls, path: str | None, name: str) -> "RunDirectory":
        """Make the directory that is asked for; without a path, a new one named after the run.

        Raises:
          ConfigError: as `create`.
        """
        return cls.create_default(name) if path is None else cls.create(Path(path))

    @classmethod
    def create_default(
        cls, recipe: str, *, parent: Path = Path("runs"), now: datetime | None = None
    ) -> "RunDirectory":
        """Make `<parent>/<recipe>-<time>`, with a number behind it if that exists already.

        Two runs that start in the same second get different folders.

        Raises:
          ConfigError: if the folder can't be made.
        """
        name = f"{recipe}-{now or datetime.now():%Y%m%d-%H%M%S}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except _PATH_ERRORS as error:
            raise _unusable(parent, error) from error
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except _PATH_ERRORS as error:
                raise _unusable(path, error) from error
            return cls.create(path)
        raise AssertionError("unreachable: the numbers never end")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing to the folder, until the block or the process ends.

        Raises:
          ConfigError: if another process holds it.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            _lock(folder, self.path)
            yield
        finally:
            os.close(folder)

    def check_nothing_is_lost(self) -> None:
        """Refuse to begin a run again of which more is there than a kill leaves.

        Raises:
          ConfigError: where the run has come to its end, or has lost its checkpoints.
        """
        every = read_toml(self.config_path).get("checkpoint", {}).get("every", 0)
        updates = self._last_update()
        if (self.path / POLICY_FOLDER).exists():
            lost = "a policy"
        elif self.has_finished:
            lost = "a summary of its end"
        elif 0 < every < updates:
            lost = f"records of {updates} updates"
        else:
            return
        raise ConfigError(
            f"{self.path} has {lost} but no checkpoint to go on from; put its "
            f"{CHECKPOINTS_FOLDER}/ back, or begin a new run with {self.config_path}"
        )

    def _last_update(self) -> int:
        """Say what update the records go to; 0 where there are none."""
        path = self.path / _METRICS
        if not path.is_file():
            return 0
        with path.open(encoding="utf-8") as lines:
            last = 0
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):  # a part, or somebody's own
                    last = json.loads(line)["step"]
        return last

    @property
    def config_path(self) -> Path:
        """The file of the resolved configuration."""
        return self.path / CONFIG_FILE

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration; values that are None are left out.

        It is a run's first file, so this is where a full disk shows.

        Raises:
          ConfigError: if it can't be written.
        """
        try:
            _write_whole(self.config_path, tomli_w.dumps(_without_none(config)))
        except OSError as error:
            raise _unusable(self.path, error) from error

    def write_summary(self, summary: Mapping[str, Any], *, finished: bool) -> None:
        """Write the summary, replacing this run's earlier one in one step.

        That of an end is replaced by that of another end only.

        Args:
          finished: whether the run has come to its end.
        """
        if finished or not self.has_finished:
            text = to_json({**summary, "finished": finished}, indent=2)
            _write_whole(self.path / _SUMMARY, text + "\n")

    @property
    def has_finished(self) -> bool:
        """Whether the run has come to its end, though it may have gone on since."""
        try:
            summary = json.loads((self.path / _SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # there is none, or somebody has changed it
            return False
        return isinstance(summary, dict) and summary.get("finished") is True

    def open_metrics(self) -> JsonlSink:
        """Open `metrics.jsonl`, one line an update."""
        return JsonlSink(self.path / _METRICS)

    def lengths(self) -> dict[str, int]:
        """Say how many bytes each file of records has that exists."""
        paths = [self.path / name for name in (_METRICS, _TRAJECTORIES)]
        return {path.name: path.stat().st_size for path in paths if path.is_file()}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Take off what has been written to these files since they were so long."""
        for name, size in self.lengths().items():
            if size > lengths.get(name, 0):
                os.truncate(self.path / name, lengths.get(name, 0))

    def open_trajectories(self) -> JsonlSink:
        """Open `trajectories.jsonl`, one line a trajectory."""
        return JsonlSink(self.path / _TRAJECTORIES)


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is seen complete or not at all, even after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        error.filename = str(path)
        raise


def _lock(folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process is at work in {path}; wait for it, or end it with SIGTERM"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _without_none(value: Any) -> Any:
    """TOML has no null, and no tuples or paths either."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _unusable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"run directory must be a folder that can be written to, got {path} ({error}); "
        f"make that possible, or set --run.dir to another one for a new run"
    )
