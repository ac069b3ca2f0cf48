"""The formats, as data. `docs/tool_calls.md` says how to add one."""

import re
from functools import partial

from .format import Bare, Edge, Format, Header, Kind, Mode, Span
from .readers.braces import QUOTE, read_braces
from .readers.json_calls import read_named, read_objects
from .readers.pythonic import read_pythonic
from .readers.tagged import (
    read_attributes,
    read_function_tags,
    read_invoke,
    read_key_value_tags,
)

THINK = ("<think>", "</think>")
_CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")

_JSON_MODES = {
    "": Mode((Edge('"', "string"),), closable=True),
    "string": Mode((Edge(r"\\", "string"), Edge(r"\"", "string"), Edge('"', ""))),
}

_PYTHON_MODES = {
    "": Mode((Edge("'", "single"), Edge('"', "double")), closable=True),
    "single": Mode((Edge(r"\\", "single"), Edge(r"\'", "single"), Edge("'", ""))),
    "double": Mode((Edge(r"\\", "double"), Edge(r"\"", "double"), Edge('"', ""))),
}

# A value on lines of its own ends at a line; its closing tag may be missing where a tag that
# can only follow a value comes next.
_FUNCTION_MODES = {
    "": Mode((Edge("<parameter=", "key"),), closable=True),
    "key": Mode((Edge(">\n</parameter>", ""), Edge(">\n", "lines"), Edge(">", "inline"))),
    "lines": Mode(
        (
            Edge("\n</parameter>", ""),
            Edge("\n<parameter=", "", peek=True),
            Edge("\n</function>", "", peek=True),
        )
    ),
    "inline": Mode(
        (
            Edge("</parameter>", ""),
            Edge("<parameter=", "", peek=True),
            Edge("</function>", "", peek=True),
        )
    ),
}


def _dsml(section: str, space: str = "") -> Format:
    """Return one of the versions of DSML, which differ in a name and a space."""
    parameter = f"｜DSML｜{space}parameter"
    return Format(
        read=read_invoke,
        calls=(Span(f"<｜DSML｜{space}invoke ", (f"</｜DSML｜{space}invoke>", "/>")),),
        modes={
            "": Mode((Edge(f"<{parameter} ", "key"),), closable=True),
            "key": Mode((Edge(">", "value"),)),
            "value": Mode((Edge(f"</{parameter}>", ""),)),
        },
        section=(f"<｜DSML｜{section}>", f"</｜DSML｜{section}>"),
        reasoning=(THINK,),
        stops=("<｜end▁of▁sentence｜>",),
    )


def _deepseek(head: str, tail: str) -> Format:
    """Return one of the versions before DSML, which differ in what surrounds the arguments."""
    return Format(
        read=partial(read_named, head=head, tail=tail),
        calls=(Span("<｜tool▁call▁begin｜>", ("<｜tool▁call▁end｜>",)),),
        modes=_JSON_MODES,
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        inner=("<｜tool▁sep｜>",),
        reasoning=(THINK,),
        stops=("<｜end▁of▁sentence｜>",),
    )


def read_harmony_header(text: str) -> tuple[Kind, str]:
    """Say what the header of a Harmony message announces.

    The recipient may stand after the role or after the channel; one on any channel is a call.

    Example:
      >>> read_harmony_header("assistant<|channel|>commentary to=functions.add <|constrain|>json")
      ('call', 'add')
      >>> read_harmony_header("<|channel|>analysis")
      ('reasoning', '')
    """
    recipient = re.search(r"\bto=(?!assistant\b)(?:functions\.)?([^\s<]+)", text)
    if recipient:
        return "call", recipient[1]
    channel = text.rpartition("<|channel|>")[2].strip()
    return ("reasoning" if channel.startswith("analysis") else "content"), ""


_HARMONY = Format(
    read=read_named,
    modes=_JSON_MODES,
    stops=("<|call|>", "<|return|>", "<|endoftext|>"),
    header=Header(
        start="<|start|>",
        message="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        read=read_harmony_header,
    ),
)

_LLAMA_STOPS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>")

_LLAMA_JSON = Format(
    read=partial(read_objects, keys=("parameters", "arguments"), separator=";"),
    calls=(Span("<|python_tag|>"),),
    modes=_JSON_MODES,
    stops=_LLAMA_STOPS,
    bare=Bare(
        first="{",
        like=r'(?s)\s*\{(?=.*"name"\s*:)(?=.*"(?:parameters|arguments)"\s*:)',
    ),
)

_LLAMA_PYTHONIC = Format(
    read=read_pythonic,
    calls=(Span("<|python_start|>", ("<|python_end|>",)),),
    modes=_PYTHON_MODES,
    stops=_LLAMA_STOPS,
    bare=Bare(first="[", like=r"\s*\[\s*[A-Za-z_][\w.]*\s*\("),
)

_KIMI_K2 = Format(
    read=partial(
        read_named,
        head=r"\s*+(?P<id>(?:functions\.)?+(?P<name>[^\s:]*+)(?::\d++)?+)\s*+<\|tool_call_argument_begin\|>",
    ),
    calls=(Span("<|tool_call_begin|>", ("<|tool_call_end|>",)),),
    modes=_JSON_MODES,
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    inner=("<|tool_call_argument_begin|>",),
    reasoning=(THINK,),
    stops=("<|im_end|>",),
)

_KIMI_K3 = Format(
    read=read_attributes,
    calls=(Span("<|open|>call ", ("<|close|>call<|sep|>",)),),
    modes={
        "": Mode((Edge("<|open|>argument ", "key"),), closable=True),
        "key": Mode((Edge("<|sep|>", "value"),)),
        "value": Mode((Edge("<|close|>argument<|sep|>", ""),)),
    },
    section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    # The response ends the thoughts even where they were never closed.
    reasoning=(("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),),
    dropped=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    ),
    stops=("<|end_of_msg|>",),
)

FORMATS: dict[str, Format] = {
    "hermes": Format(
        read=read_objects,
        calls=(Span("<tool_call>", ("</tool_call>",)),),
        modes=_JSON_MODES,
        reasoning=(THINK,),
        stops=_CHATML_STOPS,
    ),
    "qwen3_coder": Format(
        read=read_function_tags,
        calls=(
            Span("<tool_call>", ("</tool_call>",)),
            Span("<function=", ("</function>",), kept=True),
        ),
        modes=_FUNCTION_MODES,
        reasoning=(THINK,),
        dropped=("</tool_call>",),
        stops=_CHATML_STOPS,
    ),
    "llama_json": _LLAMA_JSON,
    "llama_pythonic": _LLAMA_PYTHONIC,
    "lfm2": Format(
        read=read_pythonic,
        calls=(Span("<|tool_call_start|>", ("<|tool_call_end|>",)),),
        modes=_PYTHON_MODES,
        reasoning=(THINK,),
        stops=_CHATML_STOPS,
    ),
    "gemma3": Format(
        read=read_pythonic,
        calls=(Span("```tool_code\n", ("\n```",)),),
        modes=_PYTHON_MODES,
        stops=("<end_of_turn>", "<eos>"),
    ),
    "gemma4": Format(
        read=read_braces,
        calls=(Span("<|tool_call>", ("<tool_call|>",)),),
        modes={
            "": Mode((Edge(QUOTE, "string"),), closable=True),
            "string": Mode((Edge(QUOTE, ""),)),
        },
        reasoning=(("<|channel>thought\n", "<channel|>"),),
        stops=("<turn|>", "<|tool_response>", "<eos>"),
    ),
    "deepseek_v3": _deepseek(
        head=r"\s*+function<｜tool▁sep｜>(?P<name>[^\n]*)\n```json\n", tail=r"\n```\s*"
    ),
    "deepseek_v31": _deepseek(head=r"(?P<name>[^\n]*?)<｜tool▁sep｜>", tail=r"\s*"),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml(" calls", space=" "),
    "mistral_v3": Format(
        read=read_objects,
        calls=(Span("[TOOL_CALLS]"),),
        modes=_JSON_MODES,
        reasoning=(("[THINK]", "[/THINK]"), THINK),
        stops=("</s>",),
    ),
    "mistral_v11": Format(
        read=partial(
            read_named,
            head=r"\s*+(?P<name>[^\s{]*?)(?:\[CALL_ID\](?P<id>\w*+))?+\s*+\[ARGS\]",
        ),
        calls=(Span("[TOOL_CALLS]"),),
        modes=_JSON_MODES,
        inner=("[CALL_ID]", "[ARGS]"),
        reasoning=(("[THINK]", "[/THINK]"), THINK),
        stops=("</s>",),
    ),
    "glm": Format(
        read=read_key_value_tags,
        calls=(Span("<tool_call>", ("</tool_call>",)),),
        modes={
            "": Mode((Edge("<arg_key>", "key"), Edge("<arg_value>", "value")), closable=True),
            "key": Mode((Edge("</arg_key>", ""),)),
            "value": Mode((Edge("</arg_value>", ""),)),
        },
        reasoning=(THINK,),
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
    ),
    "kimi_k2": _KIMI_K2,
    "kimi_k3": _KIMI_K3,
    "harmony": _HARMONY,
}
