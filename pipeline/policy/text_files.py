"""Reads the text side of a pretrained model: tokenizer, chat template, special tokens.

What stands in several files is taken from where Transformers takes it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..text.added_tokens import AddedToken, added_token
from ..text.gguf_tokenizer import gguf_definition
from ..text.hub_tokenizer import HubTokenizer
from .record import TextFiles

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
SPECIAL_TOKENS = "special_tokens_map.json"
KEPT_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    GENERATION,
    TEMPLATE,
    SPECIAL_TOKENS,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
_GGUF_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}
_NO_SWITCHES = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def read_text_files(folder: Path, settings: Mapping[str, Any]) -> TextFiles | None:
    """Read a folder's text side; None where it has no tokenizer.json.

    Args:
      settings: the content of its config.json.

    Raises:
      ConfigError: for a file that is damaged, or a tokenizer that isn't known.
    """
    files = {name: (folder / name).read_bytes() for name in KEPT_FILES if (folder / name).exists()}
    if TOKENIZER not in files:
        return None
    try:
        return _read_files(folder, files, settings)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the files of the tokenizer in {folder} hold something that isn't known there: "
            f"{error!r}; get them again"
        ) from error


def _read_files(
    folder: Path, files: Mapping[str, bytes], settings: Mapping[str, Any]
) -> TextFiles:
    config = read_json(folder, files, TOKENIZER_CONFIG)
    more = tuple(_more_tokens(config))
    tokenizer = HubTokenizer(read_json(folder, files, TOKENIZER), more)
    texts = _special_texts(read_json(folder, files, SPECIAL_TOKENS)) | _special_texts(config)
    generation = read_json(folder, files, GENERATION)
    named = [record.get("eos_token_id") for record in (generation, settings)]
    return TextFiles(
        tokenizer,
        _chat_template(config, files),
        texts,
        _stop_ids(named, texts, tokenizer),
        files,
    )


def gguf_text_files(fields: Mapping[str, Any]) -> TextFiles:
    """Make the text side of a GGUF file's fields, with files as the Hub has them.

    Raises:
      ConfigError: where it has no tokenizer, or one of an unknown kind.
    """
    definition = gguf_definition(fields)
    tokens = fields["tokenizer.ggml.tokens"]
    ids = {
        ours: fields[f"tokenizer.ggml.{theirs}_token_id"]
        for ours, theirs in _GGUF_TOKENS.items()
        if f"tokenizer.ggml.{theirs}_token_id" in fields
    }
    texts = {name: tokens[index] for name, index in ids.items()}
    template = fields.get("tokenizer.chat_template")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **texts}
    if template is not None:
        config["chat_template"] = template
    generation = {f"{name}_id": ids[name] for name in ("bos_token", "eos_token") if name in ids}
    files = {
        TOKENIZER: _complete(definition),
        TOKENIZER_CONFIG: config,
        GENERATION: generation,
    }
    tokenizer = HubTokenizer(definition)
    return TextFiles(
        tokenizer,
        template,
        texts,
        _stop_ids([ids.get("eos_token")], texts, tokenizer),
        {
            name: json.dumps(content, ensure_ascii=False).encode()
            for name, content in files.items()
        },
    )


def read_json(folder: Path, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Give the content of a JSON file, nothing where there is none.

    Raises:
      ConfigError: where it is damaged.
    """
    if name not in files:
        return {}
    try:
        content = json.loads(files[name])
    except ValueError as error:
        raise ConfigError(f"{folder / name} is no JSON: {error}; get it again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{folder / name} must hold a JSON object; get it again")
    return content


def _chat_template(config: Mapping[str, Any], files: Mapping[str, bytes]) -> str | None:
    if TEMPLATE in files:
        return files[TEMPLATE].decode()
    template = config.get("chat_template")
    if isinstance(template, list):  # several with names
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("tool_use", named.get("default"))
    return template


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _more_tokens(config: Mapping[str, Any]) -> Iterator[AddedToken]:
    for index, entry in config.get("added_tokens_decoder", {}).items():
        yield added_token({**entry, "id": int(index)})


def _stop_ids(
    named: list[Any], texts: Mapping[str, str], tokenizer: HubTokenizer
) -> tuple[int, ...]:
    """Give the ids that end what the model says, in order.

    Args:
      named: ids, lists of them, or None.
    """
    ids = {index for one in named for index in (one if isinstance(one, list) else [one])}
    ids.add(tokenizer.specials.get(texts.get("eos_token", "")))
    return tuple(sorted(ids - {None}))


def _complete(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Give the definition as the library `tokenizers` wants it.

    It numbers added tokens anew, but for those that the vocabulary has too.
    """
    added = [{**_NO_SWITCHES, **entry} for entry in definition["added_tokens"]]
    model = definition["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, Mapping):
        model = {
            **model,
            "vocab": {**{entry["content"]: entry["id"] for entry in added}, **vocabulary},
        }
    return {**definition, "added_tokens": added, "model": model}
