"""A model's own chat template, rendered as Transformers does it.

Invariant: rendering is pure. The template runs in a sandbox, sees no clock but a date that it is
given, and changes nothing; equal arguments give equal text.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ConfigError

DATE = datetime.date(2026, 1, 1)  # what a template reads as today, unless told otherwise


class TemplateRefusal(ValueError):
    """The template can't render these messages; the text says why."""


class ChatTemplate:
    """Renders messages to text.

    Args:
      source: the template, in Jinja.
      variables: what the template may read beside messages and tools: `bos_token`,
        `enable_thinking` and the like.
      date: what it reads as today.

    Raises:
      ConfigError: for a template that is no Jinja.

    Example:
      >>> template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
      >>> template.render([{"role": "user", "content": "a"}])
      '[a]'
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        *,
        date: datetime.date = DATE,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationMarks],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = date.strftime
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template is no Jinja: {error.message}, in line {error.lineno}"
            ) from None
        self._variables = dict(variables or {})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generate: bool = False,
    ) -> str:
        """Return the text of a conversation.

        Args:
          messages: as the template wants them: `role`, `content` and more.
          tools: JSON schemas, `{"type": "function", "function": {...}}`; none for no tools.
          generate: end with the start of the next assistant turn.

        Raises:
          TemplateRefusal: where the template raises, or fails.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generate,
                **self._variables,
            )
        except TemplateRefusal:
            raise
        # A template's code can fail in every way that Python's can.
        except Exception as error:
            raise TemplateRefusal(f"the chat template fails: {error}") from error


class _GenerationMarks(Extension):
    """Makes the block `generation`, by which some templates mark the policy's text, void."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own class reads it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    *,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's escapes for HTML, which no model has been trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise TemplateRefusal(f"the chat template refuses these messages: {message}")
