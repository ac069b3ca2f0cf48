"""Saves a policy, exactly, in a folder that appears only once it is whole."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from ..errors import ConfigError
from ..models.families import family_of
from ..models.families.family import Family
from ..models.parameters import Params
from ..models.weights.save import MAX_FILE_BYTES, gather_params, save_params
from .own import MODEL_TYPE, OWN, own_settings
from .record import Policy, TextFiles
from .source import CONFIG

# Of a config.json, what says nothing of the decoder but is worth keeping.
KEPT_SETTINGS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_position_embeddings",
    "initializer_range",
)


def save_policy(
    policy: Policy,
    folder: str | Path,
    *,
    dtype: DTypeLike | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    replace: bool = False,
    writes: bool = True,
) -> None:
    """Save a policy so that `load_policy` gives it back, and Transformers loads it.

    A model of ours that no family of the Hub describes can be loaded here only.

    Args:
      folder: a new one, or an empty one. Another process never sees a part of it. Where it
        replaces another, that one is gone for a moment before the new one is there.
      dtype: of the weights in the files; None keeps the parameters' own, so that saving and
        loading is exact.
      max_file_bytes: of one file of weights.
      replace: whether what is in the folder goes away when the new policy is whole.
      writes: false in all but one of several processes on whose devices the parameters lie: these
        only give their parts, one weight after the other, and all must call this.

    Raises:
      ConfigError: where the folder has files already, or weights aren't plain arrays.
    """
    _check_plain(policy.params)
    family, settings = _family_and_settings(policy)
    if not writes:
        gather_params(policy.params, family.entries(policy.config))
        return
    folder = Path(folder)
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} has files already; give a new folder or an empty one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    stored = np.dtype(policy.params["embedding"].dtype if dtype is None else dtype)
    settings |= {"dtype": stored.name, "torch_dtype": stored.name}  # newer and older versions'
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_prefix(folder)) as temporary:
        new = Path(temporary) / folder.name
        new.mkdir()
        save_params(
            policy.params,
            family.entries(policy.config),
            new,
            dtype=dtype,
            max_file_bytes=max_file_bytes,
        )
        (new / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        if isinstance(policy.text, TextFiles):
            for name, content in policy.text.files.items():
                (new / name).write_bytes(content)
        if replace and folder.exists():
            folder.replace(Path(temporary) / "old")
        new.replace(folder)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed while they saved a policy have left beside it.

    No other process may be saving it.
    """
    for left in folder.parent.glob(f"{_prefix(folder)}*"):
        shutil.rmtree(left)


def _prefix(folder: Path) -> str:
    return f".{folder.name}-"


def _family_and_settings(policy: Policy) -> tuple[Family, dict[str, Any]]:
    """Give the content of config.json: as it was loaded, where that says what the model is."""
    loaded = policy.settings
    if loaded.get("model_type", MODEL_TYPE) == MODEL_TYPE:
        return OWN, own_settings(policy)
    family = family_of(loaded)
    written = family.config_to(policy.config)
    is_whole = "architectures" in loaded and loaded["model_type"] == written["model_type"]
    if is_whole and family.config_from(loaded) == policy.config:
        return family, dict(loaded)
    inner = loaded.get("text_config") or {}
    kept = {key: value for key, value in {**loaded, **inner}.items() if key in KEPT_SETTINGS}
    return family_of(written), {**kept, **written, "vocab_size": policy.vocab_size}


def _check_plain(params: Params) -> None:
    leaves = {name: params[name] for name in params if name != "layers"} | params["layers"]
    other = [name for name, leaf in leaves.items() if not isinstance(leaf, jax.Array | np.ndarray)]
    if other:
        raise ConfigError(
            f"weights must be plain arrays to be saved, but these have adapters or are quantised: "
            f"{', '.join(other)}; merge the adapters first"
        )
