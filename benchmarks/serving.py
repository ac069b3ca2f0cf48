"""A sampler that serves, with its weights published and its host time clocked."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import jax
import trio

from costs import Cost, measure
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import Params, init
from headrace.pipeline.models.quantize import sampler_params
from headrace.pipeline.observe.compilations import CompilationCounter
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.engine import SamplerStatistics
from headrace.pipeline.sampler.programs import Programs, compile_programs
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.types import SampleRequest
from host_time import HostClock, reading_clocked, wrap_programs


@dataclass(frozen=True)
class Build:
    """A model with weights and the programs for one set of sizes; made once, used often."""

    model: ModelConfig
    vocab_size: int
    config: SamplerConfig
    params: Params
    programs: Programs
    compiling: Cost


@dataclass(frozen=True)
class Reading:
    """What has been counted up to one moment."""

    statistics: SamplerStatistics
    host_seconds: float
    compilations: int


@dataclass(frozen=True)
class Serving:
    """A sampler under measurement.

    Attributes:
      clock: what its device thread computes between JAX calls.
      compilations: counts those of the whole process.
    """

    sampler: NativeSampler
    clock: HostClock
    compilations: CompilationCounter

    def read(self) -> Reading:
        """Read everything that is counted."""
        return Reading(self.sampler.statistics(), self.clock.seconds, self.compilations.total)


def build(model: ModelConfig, vocab_size: int, config: SamplerConfig) -> Build:
    """Draw weights and compile the programs."""

    def make(key: jax.Array) -> Params:
        return sampler_params(init(model, vocab_size, key), config.weights)

    decoder = decoder_model(model, vocab_size)
    compiled: list[Programs] = []
    compiling = measure(lambda: compiled.append(compile_programs(config, decoder)))
    params = jax.jit(make)(jax.random.key(0))
    return Build(model, vocab_size, config, params, compiled[0], compiling)


@asynccontextmanager
async def serve(build: Build) -> AsyncIterator[Serving]:
    """Serve version 0 within the context."""
    clock = HostClock()
    programs = wrap_programs(build.programs, clock)
    model = decoder_model(build.model, build.vocab_size)
    sampler = NativeSampler(build.config, model, programs=programs)
    with reading_clocked(clock), CompilationCounter() as compilations:
        async with trio.open_nursery() as nursery:
            await nursery.start(sampler.serve)
            await sampler.publish(build.params, 0)
            yield Serving(sampler, clock, compilations)
            nursery.cancel_scope.cancel()


async def sample_all(sampler: NativeSampler, requests: Iterable[SampleRequest]) -> None:
    """Ask for all completions at once and wait for them."""
    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(sampler.sample, request)


def host_microseconds(before: Reading, after: Reading) -> float:
    """Host time of a decode dispatch, prefill and commands included, in microseconds."""
    dispatches = after.statistics.dispatches - before.statistics.dispatches
    return 1e6 * (after.host_seconds - before.host_seconds) / max(dispatches, 1)
