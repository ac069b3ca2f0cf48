import json
import math
import tempfile
import tomllib
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError
from headrace.pipeline.observe.run_directory import RunDirectory
from tests.fakes.full_disk import files_of_at_most

NOON = datetime(2026, 3, 1, 12, 0, 5)
FILES = ["config.toml", "metrics.jsonl", "summary.json", "trajectories.jsonl"]


def test_new_folder_is_made_with_its_parents(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "a" / "b")
    assert directory.path.is_dir()


def test_folder_with_other_files_is_taken(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    RunDirectory.create(tmp_path).write_summary({"steps": 1}, finished=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", FILES)
def test_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path, name: str):
    (tmp_path / name).write_text("old")
    with pytest.raises(ConfigError, match=r"--run\.dir") as raised:
        RunDirectory.create(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert name in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_dangling_link_counts_as_a_file_of_a_run(tmp_path: Path):
    (tmp_path / "summary.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        RunDirectory.create(tmp_path)


@pytest.mark.parametrize("tail", ["", "below"])
def test_file_in_the_way_is_a_config_error(tmp_path: Path, tail: str):
    (tmp_path / "file").write_text("old")
    with pytest.raises(ConfigError, match=r"--run\.dir"):
        RunDirectory.create(tmp_path / "file" / tail)
    assert (tmp_path / "file").read_text() == "old"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunDirectory.create(Path("~/mine")).path == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "~no_such_user/a"])
def test_path_that_no_folder_can_have_is_a_config_error(name: str):
    with pytest.raises(ConfigError, match=r"must be a folder .* set --run\.dir"):
        RunDirectory.create(Path(name))


def test_default_name_with_a_nul_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must be a folder .* set --run\.dir"):
        RunDirectory.create_default("a\0b", parent=tmp_path)


def test_runs_of_the_same_second_get_different_folders(tmp_path: Path):
    paths = [
        RunDirectory.create_default("calculator", parent=tmp_path, now=NOON).path.name
        for _ in range(3)
    ]
    base = "calculator-20260301-120005"
    assert paths == [base, f"{base}-2", f"{base}-3"]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["file", "dangling link", "file above", "endless name"])
def test_default_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path, kind: str):
    parent = tmp_path / "runs"
    if kind == "dangling link":
        parent.symlink_to(tmp_path / "elsewhere")
    elif kind != "endless name":
        parent.write_text("a file")
    if kind == "file above":
        parent = parent / "below"
    name = "x" * 300 if kind == "endless name" else "calculator"
    with pytest.raises(ConfigError, match=r"must be a folder .* set --run\.dir"):
        RunDirectory.create_default(name, parent=parent)


def test_config_is_read_back(tmp_path: Path):
    config = {
        "run": {"steps": 3, "dir": None, "names": ("a", "b"), "path": Path("x") / "y"},
        "learner": {"learning_rate": 3e-3, "masked": True},
    }
    RunDirectory.create(tmp_path).write_config(config)
    read = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert read == {
        "run": {"steps": 3, "names": ["a", "b"], "path": "x/y"},
        "learner": {"learning_rate": 3e-3, "masked": True},
    }


def test_summary_is_strict_json_and_replaced_as_a_whole(tmp_path: Path):
    directory = RunDirectory.create(tmp_path)
    directory.write_summary(
        {"reward_last": math.nan, "steps": 1, "long": "x" * 9999}, finished=True
    )
    directory.write_summary(
        {"reward_last": 0.5, "lag": {"mean": math.inf, "max": 2}}, finished=True
    )
    text = (tmp_path / "summary.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "reward_last": 0.5,
        "lag": {"mean": None, "max": 2},
        "finished": True,
    }
    assert text.endswith("}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_summary_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    directory = RunDirectory.create(tmp_path)
    directory.write_summary({"steps": 1}, finished=True)
    with pytest.raises(TypeError):
        directory.write_summary({"steps": object()}, finished=True)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 1, "finished": True}


@given(ends=st.lists(st.booleans(), min_size=1))
def test_the_summary_of_an_end_is_replaced_by_that_of_another_end_only(ends):
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder))
        assert not directory.has_finished
        for number, finished in enumerate(ends):
            directory.write_summary({"number": number}, finished=finished)
        found = json.loads((Path(folder) / "summary.json").read_text())
        last = max((number for number, end in enumerate(ends) if end), default=len(ends) - 1)
        assert found == {"number": last, "finished": any(ends)}
        assert directory.has_finished == any(ends)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"finished": 1}', "\0"])
def test_a_summary_that_somebody_changed_is_of_no_end(tmp_path: Path, text: str):
    (tmp_path / "summary.json").write_text(text)
    directory = RunDirectory(tmp_path)
    assert not directory.has_finished
    directory.write_summary({}, finished=False)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"finished": False}


@pytest.mark.parametrize(
    ("every", "updates", "lost"),
    [(3, 0, False), (3, 3, False), (3, 4, True), (0, 9, False), (1, 2, True)],
)
def test_a_run_that_has_lost_its_checkpoints_is_not_begun_again(tmp_path, every, updates, lost):
    directory = RunDirectory.create(tmp_path)
    directory.write_config({"checkpoint": {"every": every}})
    with closing(directory.open_metrics()) as metrics:
        for update in range(updates):
            metrics.write({"step": update + 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9')  # of a kill
    refused = pytest.raises(ConfigError, match=f"records of {updates} updates but no checkpoint")
    with refused if lost else nullcontext():
        directory.check_nothing_is_lost()


def test_a_run_that_has_ended_is_not_begun_again(tmp_path):
    directory = RunDirectory.create(tmp_path)
    directory.write_config({})
    directory.check_nothing_is_lost()
    directory.write_summary({}, finished=True)
    with pytest.raises(ConfigError, match="a summary of its end but no checkpoint to go on from"):
        directory.check_nothing_is_lost()


def test_a_full_disk_is_named_and_leaves_the_old_summary(tmp_path):
    directory = RunDirectory.create(tmp_path)
    directory.write_summary({"number": 1}, finished=True)
    with files_of_at_most(100), pytest.raises(OSError, match=r"large: '.*summary\.json'"):
        directory.write_summary({"text": "x" * 200}, finished=True)
    assert json.loads((tmp_path / "summary.json").read_text())["number"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_records_go_to_their_files(tmp_path: Path):
    directory = RunDirectory.create(tmp_path)
    for sink in (directory.open_metrics(), directory.open_trajectories()):
        sink.write({"step": 1})
        sink.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.jsonl",
        "trajectories.jsonl",
    ]


def test_an_environment_that_changes_the_working_directory_moves_no_file(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    given = RunDirectory.create(Path("mine"))
    default = RunDirectory.create_default("calculator", now=NOON)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for directory in (given, default):
        directory.write_summary({"steps": 1}, finished=True)
        directory.open_metrics().close()
    names = {"summary.json", "metrics.jsonl"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} == names
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_in_which_nothing_can_be_written_is_a_users_mistake(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    directory.path.rmdir()
    with pytest.raises(ConfigError, match=r"written to, got .*run.*; .*set --run\.dir"):
        directory.write_config({"steps": 1})
