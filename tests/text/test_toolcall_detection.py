"""Formats recognised by their chat templates: those that the package trl ships."""

from pathlib import Path

import pytest

from headrace.pipeline.text.toolcalls import FORMATS, detect_format
from headrace.pipeline.text.toolcalls.detect import SIGNS
from tests.text.vocabularies import file_of

# By the beginning of the template's name; None where a template knows no tools, or a format that
# isn't there.
EXPECTED = {
    "cohere": None,
    "deepseek_r1_distill": "deepseek_v3",
    "deepseekv3": "deepseek_v3",
    "diffusion_gemma": "gemma4",
    "gemma4": "gemma4",
    "gemma": "gemma3",
    "glm4moe": "glm",
    "gptoss": "harmony",
    "idefics3": None,
    "lfm2_2_5": "lfm2",
    "lfm2_v2": "lfm2",
    "lfm2": None,
    "llama3_1": "llama_json",
    "llama3_2": "llama_json",
    "llama3": None,
    "llava_next": None,
    "muse_glimmer": None,
    "nemotron_3": "qwen3_coder",
    "phi3": None,
    "qwen2_5_vl": None,
    "qwen2_5": "hermes",
    "qwen3_5": "qwen3_coder",
    "qwen3_6": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "qwen3": "hermes",
    "smolvlm": None,
}


@pytest.mark.parity
def test_trls_templates() -> None:
    templates = sorted(file_of("trl", "chat_templates").glob("*.jinja"))
    assert len(templates) > 50
    found = {path.stem: detect_format(path.read_text()) for path in templates}
    assert found == {path.stem: expected(path) for path in templates}


def expected(template: Path) -> str | None:
    longest = max((name for name in EXPECTED if template.stem.startswith(name)), key=len)
    return EXPECTED[longest]


@pytest.mark.parametrize(
    ("template", "specials", "name"),
    [
        ("<tool_call>", (), "hermes"),
        ("<tool_call>\n<function=", (), "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=a>", (), "qwen3_coder"),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>", (), "glm"),
        ("<|im_start|>user", ("<|im_start|>", "<tool_call>"), "hermes"),
        ("<|im_start|>user", ("<|im_start|>",), None),
        ("[TOOL_CALLS]", ("[ARGS]",), "mistral_v3"),
        ("[INST]", ("[TOOL_CALLS]", "[ARGS]"), "mistral_v11"),
        ("", (), None),
    ],
)
def test_the_template_decides_before_the_tokens(
    template: str, specials: tuple[str, ...], name: str | None
) -> None:
    assert detect_format(template, specials) == name


def test_every_format_has_signs() -> None:
    assert {name for name, _ in SIGNS} == FORMATS.keys()
