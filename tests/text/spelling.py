"""Calls written in each format, the way its models do: an oracle that shares no code with parsers.

A call is spelled in pieces of markup, whose special tokens are tokens, and values, which are
ordinary text however much they look like markup.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.text.corpus import StandIn

Call = tuple[str, Mapping[str, Any]]
Pieces = list[tuple[bool, str]]  # whether it is markup, and the text


def spell(name: str, calls: Sequence[Call]) -> Pieces:
    """Return calls in the format of a name."""
    return SPELLINGS[name](calls)


def ids_of(pieces: Pieces, tokenizer: StandIn) -> list[int]:
    """Return the ids of pieces."""
    return [
        index
        for is_markup, text in pieces
        for index in (tokenizer.markup(text) if is_markup else tokenizer.plain(text))
    ]


def markup(text: str) -> Pieces:
    """Return markup."""
    return [(True, text)]


def value(text: str) -> Pieces:
    """Return a value."""
    return [(False, text)]


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _hermes(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup("<tool_call>\n") + value(_json({"name": name, "arguments": arguments}))
        pieces += markup("\n</tool_call>\n")
    return pieces


def _qwen3_coder(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup(f"<tool_call>\n<function={name}>\n")
        for key, content in arguments.items():
            pieces += markup(f"<parameter={key}>\n") + value(_raw(content))
            pieces += markup("\n</parameter>\n")
        pieces += markup("</function>\n</tool_call>\n")
    return pieces


def _raw(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


def _llama_json(calls: Sequence[Call]) -> Pieces:
    texts = [_json({"name": name, "parameters": arguments}) for name, arguments in calls]
    return value("; ".join(texts))


def _python(call: Call) -> str:
    name, arguments = call
    return f"{name}({', '.join(f'{key}={content!r}' for key, content in arguments.items())})"


def _llama_pythonic(calls: Sequence[Call]) -> Pieces:
    return value(f"[{', '.join(map(_python, calls))}]")


def _lfm2(calls: Sequence[Call]) -> Pieces:
    return [*markup("<|tool_call_start|>"), *_llama_pythonic(calls), *markup("<|tool_call_end|>")]


def _gemma3(calls: Sequence[Call]) -> Pieces:
    return value("```tool_code\n" + "\n".join(map(_python, calls)) + "\n```")


def _gemma4(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup(f"<|tool_call>call:{name}") + _braces(arguments)
        pieces += markup("<tool_call|>")
    return pieces


def _braces(content: Any) -> Pieces:
    if isinstance(content, str):
        return [*markup('<|"|>'), *value(content), *markup('<|"|>')]
    if isinstance(content, dict):
        inner = [[*markup(f"{key}:"), *_braces(item)] for key, item in content.items()]
        return [*markup("{"), *_joined(inner), *markup("}")]
    if isinstance(content, list):
        return [*markup("["), *_joined([_braces(item) for item in content]), *markup("]")]
    return markup(_json(content))


def _joined(items: Sequence[Pieces]) -> Pieces:
    pieces: Pieces = []
    for place, item in enumerate(items):
        pieces += (markup(",") if place else []) + item
    return pieces


def _deepseek(start: str, end: str) -> Callable[[Sequence[Call]], Pieces]:
    def spelled(calls: Sequence[Call]) -> Pieces:
        pieces = markup("<｜tool▁calls▁begin｜>")
        for name, arguments in calls:
            pieces += markup(f"<｜tool▁call▁begin｜>{start.format(name=name)}")
            pieces += value(_json(arguments)) + markup(f"{end}<｜tool▁call▁end｜>\n")
        return pieces + markup("<｜tool▁calls▁end｜>")

    return spelled


def _dsml(section: str, space: str) -> Callable[[Sequence[Call]], Pieces]:
    def spelled(calls: Sequence[Call]) -> Pieces:
        pieces = markup(f"\n\n<｜DSML｜{section}>\n")
        for name, arguments in calls:
            pieces += markup(f'<｜DSML｜{space}invoke name="{name}">\n')
            for key, content in arguments.items():
                is_text = "true" if isinstance(content, str) else "false"
                pieces += markup(f'<｜DSML｜{space}parameter name="{key}" string="{is_text}">')
                pieces += value(_raw(content)) + markup(f"</｜DSML｜{space}parameter>\n")
            pieces += markup(f"</｜DSML｜{space}invoke>\n")
        return pieces + markup(f"</｜DSML｜{section}>")

    return spelled


def _mistral_v3(calls: Sequence[Call]) -> Pieces:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return [*markup("[TOOL_CALLS]"), *value(" " + _json(listed))]


def _mistral_v11(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup(f"[TOOL_CALLS]{name}[ARGS]") + value(_json(arguments))
    return pieces


def _glm(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup(f"<tool_call>{name}\n")
        for key, content in arguments.items():
            pieces += markup(f"<arg_key>{key}</arg_key>\n<arg_value>") + value(_raw(content))
            pieces += markup("</arg_value>\n")
        pieces += markup("</tool_call>")
    return pieces


def _kimi_k2(calls: Sequence[Call]) -> Pieces:
    pieces = markup("<|tool_calls_section_begin|>")
    for place, (name, arguments) in enumerate(calls):
        pieces += markup(f"<|tool_call_begin|>functions.{name}:{place}")
        pieces += markup("<|tool_call_argument_begin|>") + value(_json(arguments))
        pieces += markup("<|tool_call_end|>")
    return pieces + markup("<|tool_calls_section_end|>")


def _kimi_k3(calls: Sequence[Call]) -> Pieces:
    types = {str: "string", dict: "object", list: "array", bool: "boolean", type(None): "null"}
    pieces = markup("<|open|>tools<|sep|>")
    for place, (name, arguments) in enumerate(calls, start=1):
        pieces += markup(f'<|open|>call tool="{name}" index="{place}"<|sep|>')
        for key, content in arguments.items():
            kind = types.get(type(content), "number")
            pieces += markup(f'<|open|>argument key="{key}" type="{kind}"<|sep|>')
            pieces += value(_raw(content)) + markup("<|close|>argument<|sep|>")
        pieces += markup("<|close|>call<|sep|>")
    return pieces + markup("<|close|>tools<|sep|>")


def _harmony(calls: Sequence[Call]) -> Pieces:
    pieces: Pieces = []
    for name, arguments in calls:
        pieces += markup(f"<|start|>assistant<|channel|>commentary to=functions.{name} ")
        pieces += markup("<|constrain|>json<|message|>") + value(_json(arguments))
        pieces += markup("<|call|>")
    return pieces


SPELLINGS: dict[str, Callable[[Sequence[Call]], Pieces]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "llama_json": _llama_json,
    "llama_pythonic": _llama_pythonic,
    "lfm2": _lfm2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "deepseek_v3": _deepseek("function<｜tool▁sep｜>{name}\n```json\n", "\n```"),
    "deepseek_v31": _deepseek("{name}<｜tool▁sep｜>", ""),
    "deepseek_v32": _dsml("function_calls", ""),
    "deepseek_v4": _dsml("tool_calls", ""),
    "deepseek_v41": _dsml(" calls", " "),
    "mistral_v3": _mistral_v3,
    "mistral_v11": _mistral_v11,
    "glm": _glm,
    "kimi_k2": _kimi_k2,
    "kimi_k3": _kimi_k3,
    "harmony": _harmony,
}
# What a value can't hold as text: the marks between values, where no token stands for them.
UNSPEAKABLE: dict[str, tuple[str, ...]] = {
    "qwen3_coder": ("\n</parameter>", "\n<parameter=", "\n</function>", "</parameter>"),
}
