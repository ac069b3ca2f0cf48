"""The suite of escapes and limits in Monty, where an attempt can be written, and why not else."""

import pytest

from tests.envs.sandbox.escapes import SECRET
from tests.envs.sandbox.exhaustions import ALL
from tests.envs.sandbox.harness import Check, Outcomes, run_checks
from tests.envs.sandbox.in_monty import IN_MONTY, WHY
from tests.envs.sandbox.test_escapes import NAMES

CHECKS = {name: check for name, check in IN_MONTY.items() if isinstance(check, Check)}
REASONS = {name: why for name, why in IN_MONTY.items() if isinstance(why, str)}


def test_every_attempt_is_made_or_says_why_not() -> None:
    assert set(IN_MONTY) == {*NAMES, *ALL}
    assert set(REASONS.values()) == set(WHY)  # each of which is tried below
    assert len(CHECKS) > 40


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run_checks("monty", {**CHECKS, **WHY})


@pytest.mark.parametrize("name", [*CHECKS, *WHY])
def test_monty_holds(name: str, outcomes: Outcomes) -> None:
    check, result = {**CHECKS, **WHY}[name], outcomes[name].result
    assert result.status in check.statuses, result
    assert not check.causes or result.cause in check.causes, result
    assert (result.exit_code is None) == (result.status not in ("ok", "error"))
    if check.prints is not None:
        assert result.stdout.strip() == check.prints, result
    assert SECRET.encode() not in result.stdout + result.stderr
    assert result.truncated is (result.status == "output_limit")
    assert outcomes[name].after.stdout == b"alive\n"
