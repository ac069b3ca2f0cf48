"""Multi-turn episodes with tools: what a trajectory costs, and what is prefilled again.

A wave is some groups of episodes that start together, as for one training step. Each episode
is a task: it samples a turn, sleeps as long as its tool takes, appends the reply, and so on.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import trio

from costs import Cost, measure_async
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.types import Sample, SampleRequest
from serving import Build, host_microseconds, serve
from workload import SEED, Agentic, latency_seconds, observation, prompt

ROWS = 8
DECODE_TOKENS = 16  # a turn: half as many dispatches as with 8, but who comes late waits longer
PREFILL_LANES = 2  # a turn's new tokens; mostly one episode at a time has some


@dataclass(frozen=True)
class Episode:
    """One episode of a wave; `latency` in seconds, None for the workload's own rule."""

    work: Agentic
    prompt_index: int
    member: int
    latency: float | None


def fit(sizes: SamplerConfig, work: Agentic) -> SamplerConfig:
    """Give the few episodes that sample at a time a row each, and all of them pages.

    Most episodes wait for their tools, so a row for each would mostly compute nothing.
    """
    pages = -(-work.longest // sizes.page_tokens)
    return replace(
        sizes,
        rows=min(work.episodes, ROWS),
        decode_tokens=min(sizes.decode_tokens, DECODE_TOKENS),
        prefill_lanes=min(sizes.prefill_lanes, PREFILL_LANES),
        context_tokens=work.longest,
        pages=2 * work.episodes * pages + 2,
    )


async def measure_agentic(
    build: Build, work: Agentic, *, waves: int, latency: float | None
) -> dict[str, Any]:
    """Measure some waves after a warm-up wave; returns the numbers of the report."""
    async with serve(build) as serving:
        run_wave = partial(_run_wave, serving.sampler.sample, work, latency)
        await run_wave(0)
        before = serving.read()
        costs = [await measure_async(partial(run_wave, 1 + wave)) for wave in range(waves)]
        after = serving.read()
    prefilled = after.statistics.prefill_tokens - before.statistics.prefill_tokens
    return _rates(work, costs) | {
        "waves": waves,
        "prefill_tokens": prefilled,
        "conversation_tokens": waves * work.conversation_tokens,
        "prefill_ratio": prefilled / (waves * work.conversation_tokens),
        "prefill_ratio_without_reuse": work.read_tokens / work.conversation_tokens,
        "host_microseconds_per_dispatch": host_microseconds(before, after),
        "compilations": after.compilations - before.compilations,
        "config": asdict(build.config),
    }


def _rates(work: Agentic, costs: list[Cost]) -> dict[str, float]:
    episodes = len(costs) * work.episodes
    return {
        "trajectories_per_second": episodes / sum(cost.wall for cost in costs),
        "cpu_seconds_per_trajectory": sum(cost.cpu for cost in costs) / episodes,
        "cpu_seconds_per_trajectory_best_wave": min(cost.cpu for cost in costs) / work.episodes,
    }


async def _run_wave(sample: Sample, work: Agentic, latency: float | None, wave: int) -> None:
    async with trio.open_nursery() as nursery:
        for index in range(wave * work.prompts, (wave + 1) * work.prompts):
            for member in range(work.group_size):
                episode = Episode(work, index, member, latency)
                nursery.start_soon(run_episode, sample, episode)


async def run_episode(sample: Sample, episode: Episode) -> None:
    """Sample all turns of one episode; after each of them its tool takes its time."""
    work, index, member = episode.work, episode.prompt_index, episode.member
    tokens = prompt(index, work.prompt_tokens)
    for turn in range(work.turns):
        request = SampleRequest(
            tokens=tokens,
            max_tokens=work.turn_tokens,
            stop_ids=(),
            key=(SEED, index * work.group_size + member),
        )
        completion = await sample(request)
        await trio.sleep(_latency(episode, turn))
        reply = observation(index, member, turn, work.observation_tokens)
        tokens = np.concatenate([tokens, completion.tokens, reply])


def _latency(episode: Episode, turn: int) -> float:
    if episode.latency is not None:
        return episode.latency
    return latency_seconds(episode.prompt_index, episode.member, turn)
