"""The policy that a run starts from, and the one that it ends with."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax

from ..errors import ConfigError
from ..learner.distillation import Teacher
from ..models.adapted import adapted_model, merged_params
from ..models.frozen import freeze
from ..models.lora import init_lora
from ..models.model import Model, decoder_model
from ..models.parameters import Params
from ..policy import Policy, TextFiles, load_policy
from ..policy.renderer import make_schema_renderer
from ..policy.teacher import load_teacher
from ..text.conversation import ToolSchema
from ..text.renderer import CharacterRenderer, Renderer
from .config import DistillConfig, OfflineRecipe


@dataclass(frozen=True, eq=False)
class Start:
    """What a run starts with.

    Attributes:
      policy: without parameters.
      model: what is trained, with adapters where there are some.
      trained: all parameters, or adapters; they belong to the learner.
      frozen: the base beside adapters, else None.
    """

    policy: Policy
    model: Model
    trained: Params
    frozen: Params | None


def load_start_policy(recipe: OfflineRecipe) -> Policy:
    """Load the policy that a run starts from, or describe one whose parameters will be drawn.

    Raises:
      ConfigError: where it can't be loaded.
    """
    if recipe.policy.path is not None:
        return load_policy(recipe.policy.path)
    vocab_size = CharacterRenderer(recipe.text).vocab_size
    return Policy(recipe.model, vocab_size, {}, recipe.text)


def renderer_for(policy: Policy, recipe: OfflineRecipe, tools: Sequence[ToolSchema]) -> Renderer:
    """Make the renderer of the rows that have these tools.

    Raises:
      ConfigError: for tools of an alphabet, or a chat template that doesn't fit.
    """
    if tools and not isinstance(policy.text, TextFiles):
        raise ConfigError("an alphabet has no words for tools; leave tools out of the rows")
    return make_schema_renderer(policy, tools, recipe.policy.chat)


def start_from(policy: Policy, recipe: OfflineRecipe) -> Start:
    """Take a policy's parameters, or draw them from the run's seed; likewise adapters."""
    decoder = decoder_model(policy.config, policy.vocab_size, remat=recipe.policy.remat)
    # Hashed, since a JAX key takes only the low 32 bits of a seed.
    key = jax.random.key(zlib.crc32(f"parameters {recipe.run.seed}".encode()))
    params = policy.params or decoder.init(key)
    policy = replace(policy, params={})
    if not recipe.lora.on:
        return Start(policy, decoder, params, None)
    base = freeze(params, recipe.lora.base)
    adapters = init_lora(jax.random.fold_in(key, 1), base, recipe.lora)
    return Start(policy, adapted_model(decoder, recipe.lora), adapters, base)


def finisher(start: Start, recipe: OfflineRecipe) -> Callable[[Params], Policy]:
    """Compile what makes of trained parameters a policy that can be saved; adapters are merged."""
    policy, frozen = start.policy, start.frozen
    if frozen is None:
        return lambda trained: replace(policy, params=trained)
    pair = start.trained, frozen
    merge = jax.jit(partial(merged_params, config=recipe.lora)).lower(pair).compile()

    def finish(trained: Params) -> Policy:
        return replace(policy, params=merge((trained, frozen)))

    return finish


def stored_teacher(config: DistillConfig, student: Policy) -> Teacher:
    """Load a teacher, its weights stored as the settings say.

    Raises:
      ConfigError: where it can't be loaded, or has other tokens than the student.
    """
    setting = "distill.teacher"
    policy = load_teacher(config.teacher, student.text, student.vocab_size, setting=setting)
    model = decoder_model(policy.config, policy.vocab_size)
    return Teacher(model.forward, freeze(policy.params, config.teacher_weights))
