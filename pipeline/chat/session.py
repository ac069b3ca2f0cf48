"""A chat with a policy of this machine: loads it, compiles a sampler, and talks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from ...envs.builtin import load_env
from ...envs.tools import Tool
from ..errors import ConfigError
from ..models.model import Model, decoder_model
from ..models.parameters import Params
from ..policy import Policy
from ..policy.renderer import make_renderer
from ..sampler.config import SamplerConfig
from ..sampler.layout import fewest_rows
from ..sampler.service import NativeSampler
from ..weight_sync import compile_convert, publish
from .conversation import ChatConfig, Speaker
from .terminal import converse

PREFILL_TOKENS = 64
DECODE_TOKENS = 8
PAGE_TOKENS = 16
LANES = 1
USUAL_STOP_IDS = 8


@dataclass(frozen=True)
class Terminal:
    """How the user is reached.

    Attributes:
      read: waits for a line; None at the end. Called in a thread.
      write: shows a text.
    """

    read: Callable[[], str | None]
    write: Callable[[str], None]


def load_tools(names: tuple[str, ...]) -> list[Tool]:
    """Gather the tools of some environments.

    Raises:
      ConfigError: for an unknown environment.
    """
    try:
        specs = [load_env(name) for name in names]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return [tool for spec in specs for tool in spec.tools]


def sampler_sizes(config: ChatConfig, model: Model, *, stop_ids: int) -> SamplerConfig:
    """Choose a sampler for one conversation: one row talks, the others are there for its bits."""
    rows = fewest_rows(model)
    return SamplerConfig(
        rows=rows,
        pages=rows + 2 * -(-config.context_tokens // PAGE_TOKENS),
        context_tokens=config.context_tokens,
        decode_tokens=DECODE_TOKENS,
        page_tokens=PAGE_TOKENS,
        prefill_lanes=LANES,
        prefill_tokens=PREFILL_TOKENS,
        max_stop_ids=max(USUAL_STOP_IDS, stop_ids),
        weights=config.weights,
    )


async def chat(policy: Policy, config: ChatConfig, terminal: Terminal) -> None:
    """Talk to a policy until the user has had enough.

    Raises:
      ConfigError: where the policy has no text side, or one that can't be used.
    """
    tools = load_tools(config.tools)
    renderer = make_renderer(policy, tools, config.template)
    model = decoder_model(policy.config, policy.vocab_size)
    sizes = sampler_sizes(config, model, stop_ids=len(renderer.stop_ids))
    sampler = NativeSampler(sizes, model, decode_text=renderer.text)

    def policy_params() -> Params:
        return policy.params

    terminal.write("(compiling)")
    async with trio.open_nursery() as nursery:
        await nursery.start(sampler.serve)
        await trio.to_thread.run_sync(sampler.compile)
        device, to_stored = sampler.device, partial(model.sampler_params, weights=config.weights)
        convert = await device.run(partial(compile_convert, to_stored, policy.params))
        await publish(policy_params, sampler, 0, convert=convert, device=device)
        terminal.write("(ready: say something, or /help)")
        speaker = Speaker(renderer, sampler.sample, tools)
        await converse(speaker, config, read=terminal.read, write=terminal.write)
        nursery.cancel_scope.cancel()
