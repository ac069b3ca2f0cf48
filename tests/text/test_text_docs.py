"""The example of docs/text.md runs, and says what it seems to."""

import re
from pathlib import Path

from headrace.envs import Message, ToolCall
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.text.templates import KEEPING
from tests.text.test_template_renderer import ADD, TOKENIZER

PAGE = Path(__file__).parents[2] / "docs" / "text.md"


def test_the_example() -> None:
    source = TemplateSource(KEEPING, {"bos_token": "<s>"})
    turn = Message("assistant", "", (ToolCall("add", {"a": 12}),))
    names = {
        "tokenizer": TOKENIZER,
        "chat_template": KEEPING,
        "tools": [ADD],
        "sampled": TemplateRenderer(TOKENIZER, source, [ADD]).turn(turn),
    }
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(code, names)
    text = names["renderer"].text(names["ids"])  # type: ignore[attr-defined]
    assert names["message"].tool_calls[0].arguments == {"a": 12}  # type: ignore[attr-defined]
    assert text.endswith("42\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
