"""Which renderer a policy speaks through: its own chat template, or the alphabet's."""

from collections.abc import Iterable, Sequence

from ...envs.tools import Tool
from ..errors import ConfigError
from ..text.conversation import ToolSchema
from ..text.renderer import CharacterRenderer, Renderer, TextConfig
from ..text.template_config import TemplateConfig
from ..text.template_renderer import TemplateRenderer, TemplateSource
from .record import Policy


def make_renderer(policy: Policy, tools: Iterable[Tool], config: TemplateConfig) -> Renderer:
    """Make the renderer of a policy; see `make_schema_renderer`."""
    return make_schema_renderer(policy, [schema(tool) for tool in tools], config)


def make_schema_renderer(
    policy: Policy, tools: Sequence[ToolSchema], config: TemplateConfig
) -> Renderer:
    """Make the renderer of a policy.

    Args:
      tools: what the policy may call. An alphabet has no words for them.

    Raises:
      ConfigError: where the policy has no text side, or a chat template that doesn't fit; then
        with what it does.
    """
    text = policy.text
    if isinstance(text, TextConfig):
        return CharacterRenderer(text)
    if text is None or text.chat_template is None:
        raise ConfigError(
            "the policy has no chat template; put a chat_template.jinja beside its tokenizer.json"
        )
    source = TemplateSource(text.chat_template, text.special_texts, text.stop_ids)
    return TemplateRenderer(text.tokenizer, source, tools, config)


def schema(tool: Tool) -> ToolSchema:
    """Describe a tool as chat templates want it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
