"""Folders of dead supervisors go, whatever programs have made of them."""

import os
from pathlib import Path

from headrace.envs.sandbox.supervisor import leftovers


def deep_tree(folder: Path, depth: int) -> None:
    """Make folders in folders, deeper than a path may be long or a function may call itself."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=fd)
        inner = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_a_deep_tree_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    folder.mkdir()
    deep_tree(folder, 1100)
    leftovers.remove(folder)
    assert not folder.exists()


def test_rights_and_links_do_not_stand_in_the_way(tmp_path: Path) -> None:
    folder, outside = tmp_path / "box", tmp_path / "outside"
    (folder / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("x")
    (folder / "link").symlink_to(outside)
    (folder / "a" / "link").symlink_to(outside)
    (folder / "a" / "b" / "file").write_text("x")
    os.mkfifo(folder / "a" / "pipe")
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)
    leftovers.remove(folder)
    assert not folder.exists()
    assert (outside / "kept").read_text() == "x"


def test_what_is_not_there_is_removed_already(tmp_path: Path) -> None:
    leftovers.remove(tmp_path / "nothing")
