"""Every implementation of the `Sampler` protocol passes the same checks."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from headrace.pipeline.sampler.service import NativeSampler
from tests.fakes.sampler import FakeSampler
from tests.sampler.contract import CHECKS, Check
from tests.sampler.helpers import CONFIG, run_native, sampler_params


def run_on_native(check: Check) -> None:
    async def body(sampler: NativeSampler) -> None:
        async def publish(version: int) -> None:
            await sampler.publish(sampler_params(version), version)

        await check(sampler, publish)

    run_native(body)


def run_on_fake(check: Check) -> None:
    async def main() -> None:
        sampler = FakeSampler(
            token_seconds=0.001, context_tokens=CONFIG.context_tokens, rows=CONFIG.rows
        )

        async def publish(version: int) -> None:
            await sampler.publish(None, version)

        await check(sampler, publish)
        assert sampler.running == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("run", [run_on_native, run_on_fake], ids=["native", "fake"])
def test_contract(run: Callable[[Check], None], check: Check) -> None:
    run(check)
