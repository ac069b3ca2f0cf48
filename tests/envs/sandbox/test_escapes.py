"""Nobody gets out: each attempt in a sandbox of its own, which must still work afterwards.

`bwrap` runs here as the user of the tests; `test_as_another_user` runs all of it again as one
without rights.
"""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.sandbox.escapes import ESCAPES, SECRET, host_attempts
from tests.envs.sandbox.harness import Check, Outcome, Outcomes, run_checks
from tests.envs.sandbox.more_escapes import MORE_ESCAPES

ALL = {**ESCAPES, **MORE_ESCAPES}
NAMES = [*ALL, *host_attempts(0, "", Path("x"))]


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    os.environ["HEADRACE_TEST_SECRET"] = SECRET
    yield
    del os.environ["HEADRACE_TEST_SECRET"]


@pytest.fixture(scope="module")
def checks(secret: None) -> Iterator[dict[str, Check]]:
    """All of them, with something of the machine to find."""
    name = f"headrace-test-{os.getpid()}"
    with (
        tempfile.NamedTemporaryFile(prefix="headrace-marker-") as marker,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind("\0" + name)
        unix.listen()
        yield {**ALL, **host_attempts(server.getsockname()[1], name, Path(marker.name))}


@pytest.fixture(scope="module")
def outcomes(checks: dict[str, Check]) -> Outcomes:
    return run_checks("bwrap", checks)


@pytest.fixture(scope="module")
def outcomes_behind_a_server(checks: dict[str, Check]) -> Outcomes:
    return run_checks("remote", checks)


@pytest.mark.parametrize("name", NAMES)
def test_the_sandbox_holds(name: str, checks: dict[str, Check], outcomes: Outcomes) -> None:
    assert_kept_in(checks[name], outcomes[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_served_sandbox_holds(
    name: str, checks: dict[str, Check], outcomes_behind_a_server: Outcomes
) -> None:
    assert_kept_in(checks[name], outcomes_behind_a_server[name])


def assert_kept_in(check: Check, outcome: Outcome) -> None:
    result = outcome.result
    assert result.status in check.statuses, result
    assert not check.causes or result.cause in check.causes, result
    assert result.stdout.strip() == check.prints
    assert result.status != "ok" or result.stderr == b""
    assert outcome.after.stdout == b"alive\n"
