"""Write a small Python function; hidden tests run it in a sandbox.

The user asks for a function `f`, with one example. The policy answers with code, bare or in a
fence. The reward is 1 if `f` gives the right value for every hidden call, 0 otherwise. A wrong
first answer is told what `f` did with the example and may be mended once.

Invariant: the right values never enter the sandbox. It returns what `f` returned, each value
behind a nonce, and the comparison is made here: an exit code, or anything else that the code
prints, proves nothing. A fault of the sandbox is a failure of the episode, never a reward of 0.
"""

import json
import random
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .base import EnvironmentBroken, Split, StepResult, Task
from .messages import Message
from .sandbox import (
    Limits,
    Result,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    open_sandbox,
)
from .spec import EnvSpec

HIDDEN_CALLS = 8
MAX_TRIES = 2
DEMONSTRATED_MISTAKES = 0.5  # the share of demonstrations whose first answer is wrong

_SANDBOX = SandboxConfig(limits=Limits(wall_seconds=5.0, cpu_seconds=3.0, processes=8))
_FENCE = re.compile(r"```(?:python)?[ \t]*\n(.*?)```", flags=re.DOTALL)
_MAX_SHOWN = 200  # characters of what the example gave

_HARNESS = """
import json, os, sys
job = json.load(sys.stdin)
results = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the function prints isn't a result
inside = {"__name__": "solution"}
exec(compile(job["code"], "solution.py", "exec"), inside)
for arguments in job["calls"]:
    try:
        answer = ["value", inside["f"](*arguments)]
    except Exception as error:
        answer = ["error", f"{type(error).__name__}: {error}"]
    results.write(job["nonce"] + json.dumps(answer) + chr(10))
    results.flush()
"""


@dataclass(frozen=True)
class _Family:
    """Functions that differ in two numbers, k of 2 to 9 and m of 10 to 99.

    Attributes:
      ask: what `f` should return; k and m are filled in.
      solution: the body of a right `f`.
      right: the right value.
      draw: the arguments of a call.
    """

    ask: str
    solution: str
    right: Callable[..., Any]
    draw: Callable[[random.Random], list[Any]]


def _number(rng: random.Random) -> list[Any]:
    return [rng.randrange(-500, 500)]


def _numbers(rng: random.Random) -> list[Any]:
    return [[rng.randrange(-99, 100) for _ in range(rng.randrange(12))]]


def _word(rng: random.Random) -> list[Any]:
    return ["".join(rng.choices("abcdef", k=rng.randrange(12)))]


def _linear(k: int, m: int, x: int) -> int:
    return k * x + m


def _clamped(k: int, m: int, x: int) -> int:
    return max(-m, min(k * m, x))


def _sum_of_multiples(k: int, m: int, numbers: list[int]) -> int:
    return sum(x for x in numbers if x % k == 0) + m


def _largest_gap(k: int, m: int, numbers: list[int]) -> int:
    return k * (max(numbers) - min(numbers)) if numbers else m


def _every_kth(k: int, m: int, text: str) -> str:
    return text[::k] + str(m)


def _rotated(k: int, m: int, text: str) -> str:
    turn = (k * m) % len(text) if text else 0
    return text[turn:] + text[:turn]


_FAMILIES: Mapping[str, _Family] = {
    "linear": _Family(
        "{k} times the whole number x, plus {m}",
        "return {k} * x + {m}",
        _linear,
        _number,
    ),
    "clamped": _Family(
        "the whole number x, but at least -{m} and at most {k} times {m}",
        "return max(-{m}, min({k} * {m}, x))",
        _clamped,
        _number,
    ),
    "sum_of_multiples": _Family(
        "the sum of those numbers in the list x that {k} divides, plus {m}",
        "return sum(n for n in x if n % {k} == 0) + {m}",
        _sum_of_multiples,
        _numbers,
    ),
    "largest_gap": _Family(
        "{k} times the difference of the largest and the smallest number in the list x, "
        "or {m} if it is empty",
        "return {k} * (max(x) - min(x)) if x else {m}",
        _largest_gap,
        _numbers,
    ),
    "every_kth": _Family(
        "every {k}th letter of the text x, from the first one on, and then the digits {m}",
        "return x[::{k}] + '{m}'",
        _every_kth,
        _word,
    ),
    "rotated": _Family(
        "the text x rotated to the left by {k} times {m} letters",
        "turn = {k} * {m} % len(x) if x else 0\n    return x[turn:] + x[:turn]",
        _rotated,
        _word,
    ),
}
_KS, _MS = range(2, 10), range(10, 100)
_SPACE = [(name, k, m) for name in _FAMILIES for k in _KS for m in _MS]
_STRIDE = 2671  # about the golden section of the space and coprime to it: a fixed shuffle
_TRAIN = len(_SPACE) * 9 // 10


class CodeEnv:
    """One function to write. `task.data` has `family`, `k` and `m`."""

    def __init__(self, config: SandboxConfig = _SANDBOX) -> None:
        """Args:
        config: of the sandbox; programs need `stdin`, so not "monty".
        """
        self._config = config
        self._exits = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._task = Task("")
        self._tries = 0

    async def __aenter__(self) -> Self:
        try:
            self._sandbox = await self._exits.enter_async_context(open_sandbox(self._config))
        except SandboxUnavailable as error:
            raise EnvironmentBroken(f"code tasks need a sandbox: {error}") from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exits.aclose()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Ask for the function; the seed changes nothing."""
        self._task = task
        self._tries = 0
        return (_question(task),)

    async def step(self, message: Message) -> StepResult:
        """Run the hidden tests on the code of a message.

        Raises:
          SandboxError: for a fault of the machine.
        """
        self._tries += 1
        calls = _calls(self._task)
        given = await self._run(_code_of(message.content), calls)
        wanted = [["value", _right(self._task, call)] for call in calls]
        passed = sum(_equal(*pair) for pair in zip(given, wanted, strict=True))
        info = {"success": float(passed == len(calls)), "passed": passed / len(calls)}
        if passed == len(calls) or self._tries == MAX_TRIES:
            return StepResult(reward=info["success"], terminated=True, info=info)
        told = f"Not right: f({calls[0][0]!r}) gave {_shown(given[0])}. Try once more."
        return StepResult((Message("user", told),), info=info)

    async def _run(self, code: str, calls: Sequence[Sequence[Any]]) -> list[str | None]:
        """Return what each call gave, as JSON; None where it gave nothing."""
        if self._sandbox is None:
            raise RuntimeError("CodeEnv isn't open; use it in an async with block")
        nonce = secrets.token_hex(16)
        job = json.dumps({"code": code, "calls": calls, "nonce": nonce}).encode()
        result = await self._sandbox.exec(_HARNESS, stdin=job)
        if result.status == "infrastructure":
            raise SandboxError(result.cause)
        return _answers(result, nonce, len(calls))


def _answers(result: Result, nonce: str, count: int) -> list[str | None]:
    lines = result.stdout.decode(errors="replace").split("\n")
    answers = [line.removeprefix(nonce) for line in lines if line.startswith(nonce)]
    return [*answers[:count], *[None] * (count - len(answers))]


def _equal(given: str | None, wanted: list[Any]) -> bool:
    return given == json.dumps(wanted)  # as text, so that True isn't 1


def _shown(given: str | None) -> str:
    return "no value" if given is None else given[:_MAX_SHOWN]


def _code_of(content: str) -> str:
    fenced = _FENCE.findall(content)
    return fenced[-1] if fenced else content


def _calls(task: Task) -> list[list[Any]]:
    """Return the example's arguments and then those of the hidden calls."""
    rng = random.Random(f"code calls {task.data['family']} {task.data['k']} {task.data['m']}")
    draw = _FAMILIES[task.data["family"]].draw
    return [draw(rng) for _ in range(1 + HIDDEN_CALLS)]


def _right(task: Task, arguments: Sequence[Any]) -> Any:
    right = _FAMILIES[task.data["family"]].right
    return right(task.data["k"], task.data["m"], *arguments)


def _question(task: Task) -> Message:
    family, example = _FAMILIES[task.data["family"]], _calls(task)[0]
    asked = family.ask.format(**task.data)
    return Message(
        "user",
        f"Write a Python function f(x) that returns {asked}. "
        f"For example, f({example[0]!r}) is {_right(task, example)!r}.",
    )


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw different functions; nine tenths of all 4,320 are for training.

    The split is a fixed shuffle of all functions, so it doesn't depend on the seed.

    Raises:
      ValueError: if the split has fewer functions than `count`.
    """
    places = range(_TRAIN) if split == "train" else range(_TRAIN, len(_SPACE))
    if not 0 <= count <= len(places):
        raise ValueError(f"count must be 0 to {len(places)} for code {split!r}, got {count}")
    drawn = random.Random(f"code {split} {seed}").sample(places, count)
    return [_task(place) for place in drawn]


def _task(place: int) -> Task:
    family, k, m = _SPACE[place * _STRIDE % len(_SPACE)]
    return Task(f"{family}-{k}-{m}", {"family": family, "k": k, "m": m})


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script a conversation: half answer right at once, half after a mistake that is told."""
    family, example = _FAMILIES[task.data["family"]], _calls(task)[0]
    right = Message("assistant", _function(family.solution, task))
    if rng.random() >= DEMONSTRATED_MISTAKES:
        return _question(task), right
    told = f"Not right: f({example[0]!r}) gave no value. Try once more."
    broken = _function(family.solution, task).replace("):", ")")
    return _question(task), Message("assistant", broken), Message("user", told), right


def _function(body: str, task: Task) -> str:
    return f"def f(x):\n    {body.format(**task.data)}\n"


SPEC = EnvSpec(make=CodeEnv, tasks=tasks, demonstrate=demonstrate, best_reward=1.0)
