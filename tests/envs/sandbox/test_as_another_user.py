"""The same checks by a user without rights, who has no control groups and needs a namespace.

Root runs them again as nobody, with the interpreter, the packages and this repository bound to
where nobody can read them. Who isn't root runs them as that user anyway.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.sandbox.harness import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_SETUP = """
set -e
mount --bind "$1" "$4/python"
mount --bind "$2" "$4/packages"
mount --bind "$3" "$4/repository"
cd "$4/repository"
shift 4
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""
_REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="headrace-other-user-"))
    made.chmod(0o755)
    for name in ("python", "packages", "repository"):
        (made / name).mkdir()
    yield made
    shutil.rmtree(made)


def as_nobody(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    prefix = str(Path(sys.base_prefix).resolve())
    sources = [prefix, sysconfig.get_path("purelib"), str(_REPOSITORY), str(folder)]
    command = ["unshare", "--mount", "sh", "-c", _SETUP, "sh", *sources, "env", "-i"]
    path = f"PYTHONPATH={folder}/packages:{folder}/repository"
    python = [path, "PATH=/usr/bin:/bin", _interpreter(folder), "-B"]
    return subprocess.run(
        [*command, *python, *arguments], capture_output=True, text=True, check=False, timeout=500
    )


def _interpreter(folder: Path) -> str:
    """Return one that nobody can use: the system's, if it is of this version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    system = Path("/usr/bin", version)
    # One that was moved may not find its own shared library, so it is the second choice.
    return str(system if system.exists() else folder / "python" / "bin" / version)


_GUARANTEES = """
import trio
from headrace.envs.sandbox import SandboxConfig, open_sandbox
async def main():
    async with open_sandbox(SandboxConfig()) as box:
        print(box.guarantees)
        print((await box.exec("import os; print(os.getuid())")).stdout)
trio.run(main)
"""


def test_everything_holds_for_nobody(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: the other tests ran as a user without rights")
    require("bwrap")
    told = as_nobody(folder, "-c", _GUARANTEES)
    if told.returncode:
        pytest.skip(f"nobody can't use the interpreter or namespaces here: {told.stderr[-300:]}")
    assert "memory='polled', processes='rlimit'" in told.stdout
    assert "b'1000" in told.stdout
    names = ("contract", "escapes", "exhaustion", "infrastructure", "lifetime")
    tests = [f"tests/envs/sandbox/test_{name}.py" for name in names]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    chosen = ["-k", "not without_walls and not rlimit"]  # the slow ones, too
    more = ["--confcutdir", "tests/envs/sandbox", "--import-mode=importlib", "-W", "ignore"]
    ran = as_nobody(folder, "-m", "pytest", *options, *chosen, *more, *tests)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
