"""What a user of the wheel gets: real files under one name, and nothing else."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "sharding", "envs")


def expected_files() -> set[str]:
    """The files of the source tree, as git would ship them, under the one import name."""
    files = {"headrace/__init__.py", "headrace/__main__.py", "headrace/py.typed"}
    for package in PACKAGES:
        for pattern in ("*.py", "*.toml"):
            files |= {
                f"headrace/{path.relative_to(ROOT)}" for path in (ROOT / package).rglob(pattern)
            }
    return files


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without anything that earlier builds left behind: setuptools reuses build/."""
    copy = tmp_path_factory.mktemp("source") / "headrace"
    built = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=built)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("dist"))


def build_wheel(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source]
    subprocess.run(command, check=True)
    return next(folder.glob("headrace-*.whl"))


def test_wheel_holds_the_source_files_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == expected_files()
        assert all(info.external_attr >> 28 != 0o12 for info in archive.infolist()), "a link"


def test_wheel_works_on_its_own(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import headrace.pipeline.types as types, headrace.envs.base as base;"
        "assert types.Task is base.Task;"
        "print(types.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(result.stdout.strip()).is_relative_to(tmp_path)


def test_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path):
    pytest.importorskip("build", reason="sdists are made with `build`, of the dev extra")
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = next(path for path in tmp_path.iterdir() if path.is_dir())
    again = build_wheel(unpacked, tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
