"""A sampler without a model: scripted tokens after a latency, deterministic, trio only."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import trio

from headrace.pipeline.types import (
    NO_VERSION,
    Completion,
    FinishReason,
    SampleRequest,
    SamplerLoad,
)

VOCAB = 19
Script = Callable[[SampleRequest], Sequence[int]]


def random_script(request: SampleRequest) -> Sequence[int]:
    """As many tokens as the budget allows, decided by the key and the prompt."""
    rng = np.random.default_rng([*request.key, *request.tokens.tolist()])
    return rng.integers(0, VOCAB, request.max_tokens).tolist()


class FakeSampler:
    """Passes the contract of samplers.

    Each token takes `token_seconds` and has the request's version, or the one that is published
    when it is ready. Weights don't matter.
    """

    def __init__(
        self,
        *,
        script: Script = random_script,
        token_seconds: float = 0.1,
        publish_seconds: float = 0.0,
        context_tokens: int = 24,
        rows: int = 64,
    ):
        """Args:
        script: what is sampled, if the budget allows it and no stop id comes first.
        """
        self.policy_version = NO_VERSION
        self.running = 0
        self._published = trio.Event()
        self._script = script
        self._token_seconds = token_seconds
        self._publish_seconds = publish_seconds
        self._context_tokens = context_tokens
        self._rows = trio.CapacityLimiter(rows)
        self._holds: Counter[int] = Counter()

    async def sample(self, request: SampleRequest) -> Completion:
        if len(request.tokens) == 0 or request.max_tokens < 1:
            raise ValueError(f"a request needs tokens and a budget, got {request}")
        if request.version is not None:
            self._check(request.version)
        self.running += 1
        try:
            await self._published.wait()
            async with self._rows:
                return await self._sample(request)
        finally:
            self.running -= 1

    async def publish(self, params: Any, version: int) -> None:
        await trio.sleep(self._publish_seconds)
        self.policy_version = version
        self._published.set()

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        self._check(version)
        self._holds[version] += 1
        try:
            yield
        finally:
            self._holds[version] -= 1

    def load(self) -> SamplerLoad:
        busy = int(self._rows.borrowed_tokens)
        return SamplerLoad(int(self._rows.total_tokens), busy, self.running - busy)

    def _check(self, version: int) -> None:
        allowed = {self.policy_version, *self._holds.elements()} - {NO_VERSION}
        if version not in allowed:
            raise ValueError(f"version must be one of {sorted(allowed)}, got {version}")

    async def _sample(self, request: SampleRequest) -> Completion:
        room = self._context_tokens - len(request.tokens)
        if room < 1:
            await trio.lowlevel.checkpoint()
            return _completion([], [], FinishReason.PROMPT_TOO_LONG)
        tokens: list[int] = []
        versions: list[int] = []
        for token in list(self._script(request))[: min(request.max_tokens, room)]:
            await trio.sleep(self._token_seconds)
            tokens.append(token)
            versions.append(self.policy_version if request.version is None else request.version)
            if token in request.stop_ids:
                return _completion(tokens, versions, FinishReason.STOP)
        return _completion(tokens, versions, FinishReason.LENGTH)


def _completion(tokens: list[int], versions: list[int], finish: FinishReason) -> Completion:
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.full(len(tokens), -np.log(VOCAB), np.float32),
        policy_versions=np.array(versions, np.int32),
        finish=finish,
    )
