"""The simulated sampler keeps the promises of every sampler, whatever its costs."""

import numpy as np
import pytest

from headrace.pipeline.simulate.sampler import SimulatedSampler
from headrace.pipeline.simulate.speeds import SamplerCosts
from headrace.pipeline.simulate.timers import Timers, run_virtually
from headrace.pipeline.types import SampleRequest
from tests.sampler.contract import CHECKS, Check, the_load_counts_every_request
from tests.sampler.helpers import CONFIG

COSTS = {
    "free": SamplerCosts(),
    "rows": SamplerCosts(0.001, 0.0001, 0.00001, 0.00005, rows=CONFIG.rows),
    "pages": SamplerCosts(
        0.001, 0.0001, 0.00001, 0.00005, 0.0005, rows=CONFIG.rows, kv_tokens=2 * 24
    ),
    "everything": SamplerCosts(0.001, 0.0, 0.00001, 0.0005, 0.002),
}


def drawn_length(request: SampleRequest) -> int:
    return int(np.random.default_rng([*request.key, *request.tokens.tolist()]).integers(1, 9))


# Rows are counted by a sampler that has rows, and no other limit.
CASES = [
    pytest.param(costs, check, id=f"{name}-{check.__name__}")
    for name, costs in COSTS.items()
    for check in CHECKS
    if check is not the_load_counts_every_request or name == "rows"
]


@pytest.mark.parametrize(("costs", "check"), CASES)
def test_contract(costs: SamplerCosts, check: Check) -> None:
    async def main(timers: Timers) -> None:
        sampler = SimulatedSampler(
            costs, timers, turn_tokens=drawn_length, context_tokens=CONFIG.context_tokens
        )

        async def publish(version: int) -> None:
            await sampler.publish(None, version)

        await check(sampler, publish)
        assert len(sampler.engine.waiting) == 0

    run_virtually(main, seed=0)
