"""Control groups, against a folder that does what the kernel's does.

A fake makes the files of a new group, refuses to remove one in which something runs, and lets the
dead leave. Version 1 is used for real wherever the other tests find it.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.envs.sandbox.supervisor import cgroups
from headrace.envs.sandbox.supervisor.cgroups import Group, Layout

FILES = {
    "memory 2": {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\noom_group_kill 0\n",
    },
    "pids 2": {"pids.max": "max"},
    "memory 1": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.max_usage_in_bytes": "0",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    },
    "pids 1": {"pids.max": "max"},
}


@dataclass
class Kernel:
    """The fake. `controllers` are those that new groups get, below `root` and in its folders."""

    root: Path
    controllers: dict[Path, list[str]] = field(default_factory=dict)

    def make(self, folder: Path) -> None:
        if folder.exists():
            raise FileExistsError(folder)
        if folder.parent not in self.controllers:
            raise PermissionError(folder)
        shutil.copytree(self._template(folder.parent), folder)

    def _template(self, parent: Path) -> Path:
        template = self.root.parent / "-".join(("template", *parent.relative_to(self.root).parts))
        if not template.exists():
            template.mkdir(parents=True)
            (template / "cgroup.procs").write_text("")
            for controller in self.controllers[parent]:
                for name, text in FILES[controller].items():
                    (template / name).write_text(text)
        return template

    def remove(self, folder: Path) -> None:
        if not folder.exists():
            raise FileNotFoundError(folder)
        if any(_lives(pid) for pid in (folder / "cgroup.procs").read_text().split()):
            raise OSError(16, "Device or resource busy")
        shutil.rmtree(folder)


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def instead_below(
    root: Path, real: Callable[..., None], fake: Callable[[Path], None]
) -> Callable[..., None]:
    """Return a method of `Path` that is the kernel's for groups."""

    def method(path: Path, *arguments: object, **named: object) -> None:
        is_group = path.is_relative_to(root) and path.name.startswith("headrace-")
        if is_group:
            fake(path)
        else:
            real(path, *arguments, **named)

    return method


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    fake = Kernel(tmp_path / "cgroup")
    fake.root.mkdir()
    monkeypatch.setattr(Path, "mkdir", instead_below(fake.root, Path.mkdir, fake.make))
    monkeypatch.setattr(Path, "rmdir", instead_below(fake.root, Path.rmdir, fake.remove))
    return fake


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "own"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def unified(kernel: Kernel, own: Callable[[str], Path]) -> Layout:
    """Version 2, where the group of this process may be divided."""
    (kernel.root / "cgroup.controllers").write_text("cpu memory pids\n")
    service = kernel.root / "service"
    service.mkdir()
    (service / "cgroup.subtree_control").write_text("")
    kernel.controllers = {service: ["memory 2", "pids 2"]}
    return cgroups.find(kernel.root, own("0::/service\n"))


def test_one_tree_is_found_and_its_controllers_are_handed_on(
    unified: Layout, kernel: Kernel
) -> None:
    service = kernel.root / "service"
    assert unified == Layout(service, service, 2)
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not list(service.glob("headrace-probe-*"))


def test_a_group_that_holds_this_process_gives_way_to_a_sibling(
    kernel: Kernel, own: Callable[[str], Path]
) -> None:
    (kernel.root / "cgroup.controllers").write_text("memory pids\n")
    (kernel.root / "user" / "session").mkdir(parents=True)
    kernel.controllers = {
        kernel.root / "user" / "session": [],  # "no internal processes": nothing is handed on
        kernel.root / "user": ["memory 2", "pids 2"],
    }
    found = cgroups.find(kernel.root, own("0::/user/session\n"))
    assert found == Layout(kernel.root / "user", kernel.root / "user", 2)


@pytest.mark.parametrize("controllers", [None, [], ["pids 2"], ["memory 2"]])
def test_what_is_not_delegated_is_not_claimed(
    kernel: Kernel, own: Callable[[str], Path], controllers: list[str] | None
) -> None:
    (kernel.root / "cgroup.controllers").write_text("memory pids\n")
    service = kernel.root / "service"
    service.mkdir()
    kernel.controllers = {} if controllers is None else {service: controllers}
    assert cgroups.find(kernel.root, own("0::/service\n")) == Layout(None, None, 2)


def test_a_machine_without_groups_has_none(tmp_path: Path) -> None:
    nothing = Layout(None, None, 1)
    assert cgroups.find(tmp_path / "nothing", tmp_path / "own") == nothing
    group = Group(nothing, "headrace-x-1")
    group.limit(memory_bytes=1, processes=1)
    assert not group.ran_out()
    group.remove()


def test_limits_of_version_2(unified: Layout) -> None:
    group = Group(unified, "headrace-x-1")
    assert unified.memory is not None
    folder = unified.memory / "headrace-x-1"
    group.limit(memory_bytes=1 << 28, processes=12)
    assert (folder / "memory.max").read_text() == str(1 << 28)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "12"
    assert not group.ran_out()
    events = folder / "memory.events"
    events.write_text(events.read_text().replace("oom_kill 0", "oom_kill 3"))
    assert (group.ran_out(), group.machine_ran_out()) == (False, True)
    events.write_text(events.read_text().replace("oom 2", "oom 3"))
    assert (group.ran_out(), group.machine_ran_out()) == (True, False)
    group.limit(memory_bytes=1 << 28, processes=12)
    assert (group.ran_out(), group.machine_ran_out()) == (False, False)  # of the next call
    group.enter()
    assert (folder / "cgroup.procs").read_text() == "0"  # the kernel reads it as the writer
    (folder / "cgroup.procs").write_text("")
    group.remove()
    assert not folder.exists()


def test_without_swap_there_is_no_limit_on_it(unified: Layout) -> None:
    group = Group(unified, "headrace-x-1")
    assert unified.memory is not None
    (unified.memory / "headrace-x-1" / "memory.swap.max").unlink()
    group.limit(memory_bytes=1 << 28, processes=12)
    assert not (unified.memory / "headrace-x-1" / "memory.swap.max").exists()


@pytest.fixture
def divided(kernel: Kernel, own: Callable[[str], Path]) -> Layout:
    """Version 1: a tree for each controller."""
    for controller in ("memory", "pids"):
        (kernel.root / controller / "job").mkdir(parents=True)
        kernel.controllers[kernel.root / controller / "job"] = [f"{controller} 1"]
    return cgroups.find(kernel.root, own("5:pids:/job\n4:cpu,memory:/job\n0::/\n"))


def test_limits_of_version_1(divided: Layout, kernel: Kernel) -> None:
    assert divided == Layout(kernel.root / "memory" / "job", kernel.root / "pids" / "job", 1)
    group = Group(divided, "headrace-x-1")
    memory = kernel.root / "memory" / "job" / "headrace-x-1"
    group.limit(memory_bytes=1 << 28, processes=12)
    assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 28)
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(1 << 28)
    assert (kernel.root / "pids" / "job" / "headrace-x-1" / "pids.max").read_text() == "12"
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 2\n")
    assert (group.ran_out(), group.machine_ran_out()) == (False, True)
    (memory / "memory.max_usage_in_bytes").write_text(str((1 << 28) - 4096))
    assert (group.ran_out(), group.machine_ran_out()) == (True, False)
    group.limit(memory_bytes=1 << 28, processes=12)
    assert (group.ran_out(), group.machine_ran_out()) == (False, False)  # of the next call
    assert (memory / "memory.max_usage_in_bytes").read_text() == "0"
    group.remove()
    assert not memory.exists()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_what_runs_in_a_leftover_is_killed_and_others_are_spared(
    unified: Layout, sleeper: subprocess.Popen[bytes]
) -> None:
    assert unified.memory is not None
    Group(unified, "headrace-dead-1")
    Group(unified, "headrace-living-1")
    (unified.memory / "headrace-dead-1" / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    assert cgroups.remove_all(unified, "headrace-dead-") == 1
    assert sleeper.wait() == -signal.SIGKILL
    assert [folder.name for folder in unified.memory.glob("headrace-*")] == ["headrace-living-1"]


def test_the_machines_count_is_one_of_many(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 1\noom_kill 5\nnr_oom_kill 9\n")
    assert cgroups.oom_kills_of_the_machine(counters) == 5
    assert cgroups.oom_kills_of_the_machine(tmp_path / "nothing") == 0
