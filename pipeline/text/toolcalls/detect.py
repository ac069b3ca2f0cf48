"""Which format a chat template teaches its model.

Invariant: the answer follows from texts that only one format has; where there is none, there is
no answer.
"""

from collections.abc import Collection

# In this order: the first format all of whose texts are in the template or among the tokens.
# What a later format has in common with an earlier one doesn't matter.
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")),
    ("deepseek_v41", ("｜DSML｜ calls",)),
    ("deepseek_v4", ("｜DSML｜tool_calls",)),
    ("deepseek_v32", ("｜DSML｜function_calls",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_v3", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>", "<arg_value>")),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("hermes", ("<tool_call>",)),
    ("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>")),
    ("llama_pythonic", ("<|header_start|>",)),
    ("llama_json", ("<|start_header_id|>", '"parameters"')),
    ("gemma3", ("<start_of_turn>",)),
)


def detect_format(chat_template: str, specials: Collection[str] = ()) -> str | None:
    """Return the name of the format, one of `FORMATS`, or None where no sign is known.

    Args:
      chat_template: the template's source. It decides alone where it shows any format.
      specials: the special tokens, for templates that say nothing about tools.

    Example:
      >>> detect_format("{{ '<tool_call>' }}")
      'hermes'
    """
    named = frozenset(specials)
    for name, signs in SIGNS:
        if all(sign in chat_template for sign in signs):
            return name
    for name, signs in SIGNS:
        if all(sign in named for sign in signs):
            return name
    return None
