"""A server that doesn't keep to the protocol is an error of the sandbox, never the run's end."""

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from headrace.envs.sandbox import (
    Guarantees,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    hosts,
    open_sandbox,
)
from headrace.envs.sandbox.connection import Connection, ConnectionLost

_ANSWERS = """
import json, sys
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    for answer in answers.get(request["op"], [{}]):
        print(json.dumps({"id": request["id"], **answer}), flush=True)
"""
_WELL: dict[str, Any] = {f.name: "remote" for f in fields(Guarantees)} | {"is_boundary": True}
_RESULT: dict[str, Any] = {
    "status": "ok",
    "exit_code": 0,
    "stdout": "",
    "stderr": "",
    "truncated": False,
    "usage": {},
    "cause": "exit 0",
    "workspace_lost": False,
}


def server(**answers: list[Any]) -> SandboxConfig:
    """Reach a server that answers each request of an operation with these fields."""
    given = json.dumps({"hello": [{"guarantees": _WELL}], **answers})
    return SandboxConfig(
        backend="remote", command=(sys.executable, "-I", "-S", "-c", _ANSWERS, given)
    )


async def use(config: SandboxConfig) -> tuple[str, str, bytes]:
    async with open_sandbox(config) as box:
        result = await box.exec("print(1)")
        return result.status, result.cause, await box.read("file")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"guarantees": None},
        {"guarantees": {}},
        {"guarantees": {**_WELL, "more": 1}},
        {"guarantees": {**_WELL, "is_boundary": "no"}},
        {"guarantees": {**_WELL, "memory": ["cgroup"]}},
        {"guarantees": {**_WELL, "memory": "enough"}},
        {"error": "who are you?", "kind": "refused"},
        {"guarantees": _WELL, "id": []},
        {"guarantees": _WELL, "id": "1"},
        {"guarantees": _WELL, "id": None},
    ],
)
def test_a_greeting_that_is_none_is_an_error_of_the_sandbox(answer: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        trio.run(use, server(hello=[answer]))
    assert type(caught.value) is SandboxError  # which is tried again
    assert "hello" in str(caught.value) or "protocol" in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {**_RESULT, "usage": {"joules": 1}},
        {**_RESULT, "usage": None},
        {**_RESULT, "stdout": "no base64!"},
        {**_RESULT, "stdout": 1},
        {**_RESULT, "status": "fine"},
    ],
)
def test_a_result_that_is_none_is_a_fault_of_the_machine(answer: dict[str, Any]) -> None:
    status, cause, data = trio.run(use, server(exec=[answer], read=[{"data": "eA=="}]))
    assert (status, data) == ("infrastructure", b"x")
    assert "exec" in cause


@pytest.mark.parametrize("answer", [{}, {"data": "x"}, {"data": None}])
def test_a_file_that_is_none_is_an_error_of_the_sandbox(answer: dict[str, Any]) -> None:
    with pytest.raises(SandboxError, match="read"):
        trio.run(use, server(exec=[_RESULT], read=[answer]))


def test_answers_that_nobody_waits_for_are_passed_over() -> None:
    answers = [{"id": 99}, _RESULT, {**_RESULT, "status": "error"}]
    found = trio.run(use, server(exec=answers, read=[{"data": "eA=="}]))
    assert found == ("ok", "exit 0", b"x")


def test_a_server_without_walls_is_refused_by_a_run_that_wants_them() -> None:
    config = server(
        hello=[{"guarantees": {**_WELL, "is_boundary": False}}],
        exec=[_RESULT],
        read=[{"data": "eA=="}],
    )
    with pytest.raises(SandboxUnavailable, match=r"is_boundary.*False.*allow_unsafe=True"):
        trio.run(use, config)
    assert trio.run(use, replace(config, allow_unsafe=True))[0] == "ok"


def test_a_command_that_is_not_there_is_for_good(tmp_path: Path) -> None:
    config = SandboxConfig(backend="remote", command=(str(tmp_path / "ssh"),))
    with pytest.raises(SandboxUnavailable, match="No such file"):
        trio.run(use, config)


def test_a_server_that_is_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_START_SECONDS", 0.1)
    with pytest.raises(SandboxError, match="didn't answer in") as caught:
        trio.run(use, server(hello=[]))
    assert type(caught.value) is SandboxError


def test_a_machine_that_is_out_of_descriptors_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = server(exec=[_RESULT], read=[{"data": "eA=="}])

    async def full(*args: object, **options: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "open_process", full)
            with pytest.raises(SandboxError, match="Too many open files") as caught:
                await use(config)
            assert type(caught.value) is SandboxError
        assert (await use(config))[0] == "ok"

    trio.run(main)


def talk(peer: Callable[[trio.SocketStream], Any], waits: int) -> list[object]:
    """Send so many requests to a peer; return what came of each."""
    outcomes: list[object] = [None] * waits

    async def main() -> None:
        one, other = trio.socket.socketpair()
        ours, theirs = trio.SocketStream(one), trio.SocketStream(other)
        connection = Connection(ours, ours)

        async def wait(number: int) -> None:
            try:
                outcomes[number] = (await connection.request("open", number=number))["number"]
            except SandboxError as error:
                outcomes[number] = error

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery, theirs:
                nursery.start_soon(connection.listen)
                for number in range(waits):
                    nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked()
                await peer(theirs)
                await trio.testing.wait_all_tasks_blocked()
        await connection.aclose()

    trio.run(main)
    return outcomes


def test_answers_may_come_out_of_order() -> None:
    async def peer(stream: trio.SocketStream) -> None:
        requests = [json.loads(line) for line in (await stream.receive_some()).splitlines()]
        for request in reversed(requests):
            await stream.send_all(json.dumps(request).encode() + b"\n")

    assert talk(peer, waits=3) == [0, 1, 2]


@pytest.mark.parametrize(
    "line",
    [b'{"id": []}', b'{"id": {}}', b'{"id": 1.0}', b"{}", b"[]", b"\xff", b"[" * 200_000],
)
def test_a_line_that_is_none_ends_all_that_wait_and_is_told(line: bytes) -> None:
    async def peer(stream: trio.SocketStream) -> None:
        await stream.send_all(line + b"\n")

    for outcome in talk(peer, waits=2):
        assert isinstance(outcome, ConnectionLost)
        assert "protocol" in str(outcome)


def test_what_enforces_a_limit_has_a_name() -> None:
    with pytest.raises(ValueError, match=r"memory must be one of cgroup.*, got 'luck'"):
        Guarantees(**{**_WELL, "memory": "luck"})
