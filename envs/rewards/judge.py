"""A model as a judge: asks a server in OpenAI's form, and reads a number from what it says.

Invariant: a score is a number that the judge wrote, within the stated range. An answer without
one, and a server that doesn't answer, are exceptions, so the episode couldn't be scored.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from ..http_client import HttpError, HttpReply, check_url, post_json
from ..messages import Message
from .record import EpisodeRecord

_LONGEST_PAUSE_SECONDS = 30.0
_TRY_AGAIN = (408, 409, 425, 429)  # and all from 500 on
_READ = 10_000  # characters at the end of an answer in which a score is looked for
_SHOWN = 300  # characters of an answer in messages

Ask = Callable[[EpisodeRecord], str | Sequence[Message]]
"""From an episode to what the judge reads: a text of the user, or messages."""


class JudgeError(Exception):
    """The judge gave no score."""


@dataclass(frozen=True)
class JudgeConfig:
    """Which model judges, and how.

    Attributes:
      url: of the API, as in "http://host:8000/v1"; "/chat/completions" is added.
      api_key: sent as a bearer token; never shown.
      max_tokens: of an answer.
      lowest: a score below is none.
      highest: a score above is none.
      attempts: so many requests, at most, before the judge couldn't answer; >= 1.
      attempt_seconds: deadline of one request; `Reward.deadline_seconds` is that of all.
      pause_seconds: before the second request; it doubles, up to 30 s, and is shortened by
        chance up to a half. A server's Retry-After is obeyed up to 30 s.

    Raises:
      ValueError: for values out of range.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    temperature: float = 0.0
    max_tokens: int = 1024
    lowest: float = 0.0
    highest: float = 1.0
    attempts: int = 4
    attempt_seconds: float = 60.0
    pause_seconds: float = 1.0

    def __post_init__(self) -> None:
        check_url(self.url)
        _check("temperature", self.temperature, ">= 0", self.temperature >= 0)
        _check("max_tokens", self.max_tokens, ">= 1", self.max_tokens >= 1)
        _check("lowest", self.lowest, f"< highest ({self.highest})", self.lowest < self.highest)
        _check("attempts", self.attempts, ">= 1", self.attempts >= 1)
        _check("attempt_seconds", self.attempt_seconds, "> 0", self.attempt_seconds > 0)
        _check("pause_seconds", self.pause_seconds, ">= 0", self.pause_seconds >= 0)


class Judge:
    """An `async` reward function; see docs/rewards.md."""

    def __init__(self, config: JudgeConfig, ask: Ask):
        self._config = config
        self._ask = ask

    async def __call__(self, episode: EpisodeRecord) -> float:
        """Return the judge's score.

        Raises:
          JudgeError: if there is none.
        """
        said = await self._answer(_request(self._config, self._ask(episode)))
        return read_score(said, lowest=self._config.lowest, highest=self._config.highest)

    async def _answer(self, request: dict[str, Any]) -> str:
        config, failed = self._config, ""
        for attempt in range(config.attempts):
            pause = min(config.pause_seconds * 2**attempt, _LONGEST_PAUSE_SECONDS)
            with trio.move_on_after(config.attempt_seconds) as scope:
                try:
                    reply = await self._post(request)
                except HttpError as error:
                    failed = str(error)
                else:
                    if not _is_passing(reply.status):
                        return _content(reply)
                    failed = _describe(reply)
                    pause = max(pause, _retry_after_seconds(reply))
            if scope.cancelled_caught:
                failed = f"no answer in {config.attempt_seconds:g} s"
            if attempt + 1 < config.attempts:
                await trio.sleep(pause * (1 - random.random() / 2))
        raise JudgeError(f"no answer after {config.attempts} requests, the last time: {failed}")

    async def _post(self, request: dict[str, Any]) -> HttpReply:
        key = self._config.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        return await post_json(url, request, headers=headers)


def read_score(text: str, *, lowest: float = 0.0, highest: float = 1.0) -> float:
    """Read a judge's score: a number alone, or the last JSON object with a number "score".

    What a reasoning model wrote before `</think>` doesn't count.

    Raises:
      JudgeError: for a text without a score, or with one out of range.

    Example:
      >>> read_score('Correct, but long. {"score": 0.75}')
      0.75
    """
    verdict = text.rpartition("</think>")[2].strip()
    score = _number(verdict)
    for found in _objects(verdict[-_READ:]):
        if "score" in found:
            score = _finite(found["score"])
    if score is None or not lowest <= score <= highest:
        raise JudgeError(
            f"the answer has no score of {lowest:g} to {highest:g}, as a number alone or as "
            f'{{"score": number}}: {verdict[-_SHOWN:]!r}'
        )
    return score


def _number(text: str) -> float | None:
    try:
        return _finite(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and not math.isnan(value) else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, without those inside of others."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield value
        start = text.find("{", end)


def _request(config: JudgeConfig, asked: str | Sequence[Message]) -> dict[str, Any]:
    messages = [Message("user", asked)] if isinstance(asked, str) else asked
    return {
        "model": config.model,
        "messages": [{"role": each.role, "content": each.content} for each in messages],
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
    }


def _is_passing(status: int) -> bool:
    return status in _TRY_AGAIN or status >= 500


def _content(reply: HttpReply) -> str:
    if reply.status != 200:
        raise JudgeError(f"the server refuses: {_describe(reply)}")
    try:
        content = json.loads(reply.body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        content = None
    if not isinstance(content, str):
        raise JudgeError(f"the server's answer is no chat completion: {_describe(reply)}")
    return content


def _describe(reply: HttpReply) -> str:
    return f"status {reply.status}: {reply.body[:_SHOWN].decode(errors='replace')}"


def _retry_after_seconds(reply: HttpReply) -> float:
    text = reply.headers.get("retry-after", "")
    return min(float(text), _LONGEST_PAUSE_SECONDS) if text.isdecimal() else 0.0


def _check(name: str, value: float, condition: str, allowed: bool) -> None:
    if not (allowed and math.isfinite(value)):
        raise ValueError(f"{name} of a judge must be {condition} and finite, got {value}")
