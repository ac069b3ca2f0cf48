"""A turn's token ids as reasoning, content and tool calls.

Invariant: for any ids and any way to cut them, the same turn, and never an exception. A call has
the status "ok" only where the format was kept to the letter and the call was closed; what isn't
"ok" is reported and must not be run.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ....envs.messages import ToolCall
from ...types import FinishReason
from .calls import Call
from .format import Format
from .grammar import Grammar
from .machine import CallEvent, Driver, Event, Machine, TextEvent
from .reading import CallLimits, Context
from .states import first_state
from .symbols import SymbolReader, TokenTable

Finish = FinishReason | Literal["stop", "length"]
ToolSchema = Mapping[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """What a turn says.

    Attributes:
      reasoning: without white space around it.
      content: all text outside of reasoning and calls, joined, without white space around it.
      calls: all attempts in order, also wrong ones.
      last_events: what only the end of the turn made certain, after all that `feed` returned.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    last_events: tuple[Event, ...] = field(default=(), compare=False)


class ToolCallParser:
    """Parses turns of one format, one after the other, piece by piece.

    Example:
      >>> from types import SimpleNamespace
      >>> from headrace.pipeline.text.toolcalls import FORMATS
      >>> marks = {"<tool_call>": 256, "</tool_call>": 257}
      >>> tokenizer = SimpleNamespace(specials=marks, token_bytes=lambda index: bytes([index]))
      >>> parser = ToolCallParser(FORMATS["hermes"], tokenizer)
      >>> for index in [*b"hi! ", 256, *b'{"name": "add", "arguments": {}}', 257]:
      ...     events = parser.feed([index])
      >>> turn = parser.finish("stop")
      >>> turn.content, turn.calls[0].name, turn.calls[0].status, turn.calls[0].token_span
      ('hi!', 'add', 'ok', (4, 38))
    """

    def __init__(
        self,
        chosen: Format,
        tokenizer: TokenTable,
        tools: Iterable[ToolSchema] = (),
        *,
        prompt: Sequence[int] = (),
        limits: CallLimits | None = None,
    ) -> None:
        """Args:
        tools: `{"name": …, "parameters": {…}}` or `{"type": "function", "function": {…}}`;
          needed for formats that write values without quotes.
        prompt: the ids that the template puts before every turn (the generation prompt alone,
          no messages): they may open the reasoning.
        """
        self._grammar = Grammar(chosen, tokenizer)
        self._tokenizer = tokenizer
        self._context = Context(
            self._grammar.symbols, limits or CallLimits(), _parameters_by_name(tools)
        )
        self._stop_ids = {
            tokenizer.specials[text] for text in chosen.stops if text in tokenizer.specials
        }
        self._prompt = tuple(prompt)
        self._held: int | None = None
        self._begin()

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """Take more ids of the turn; return what they made certain."""
        found = []
        for index in map(int, ids):
            if self._held is not None:
                found.append(self._read(self._held))
            self._held = index if index in self._stop_ids else None
            if self._held is None:
                found.append(self._read(index))
        self._driver.push("".join(found))
        return self._take()

    def finish(self, reason: Finish = FinishReason.STOP) -> ParsedTurn:
        """Return the turn, and begin the next.

        Args:
          reason: "length" where a limit cut the turn off. A turn whose last id is a stop token
            is whole all the same.
        """
        truncated = reason != FinishReason.STOP and self._held is None
        self._driver.push(self._reader.end())
        self._driver.end(truncated=truncated)
        last_events = tuple(self._take())
        turn = ParsedTurn(
            "".join(self._texts["reasoning"]).strip(),
            "".join(self._texts["content"]).strip(),
            tuple(self._calls),
            last_events,
        )
        self._begin()
        return turn

    def _begin(self) -> None:
        machine = Machine(self._grammar, self._context, self._token_span)
        self._driver = Driver(machine, first_state(machine))
        self._reader = SymbolReader(self._tokenizer, self._grammar.symbols)
        self._starts: list[int] = []
        self._length = 0
        self._held = None
        self._texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._calls: list[ToolCall] = []
        self._read_prompt(machine)

    def _read_prompt(self, machine: Machine) -> None:
        prompt = "".join(map(self._reader.read, self._prompt)) + self._reader.end()
        machine.place = -len(prompt)
        self._driver.push(prompt, final=True)
        machine.events.clear()
        machine.calls = 0
        if self._grammar.format.bare and not isinstance(self._driver.state, Call):
            self._driver.state = first_state(machine)

    def _read(self, index: int) -> str:
        symbols = self._reader.read(index)
        self._starts.append(self._length)
        self._length += len(symbols)
        return symbols

    def _take(self) -> list[Event]:
        events, self._driver.machine.events = self._driver.machine.events, []
        for event in events:
            if isinstance(event, TextEvent):
                self._texts[event.kind].append(event.text)
            elif isinstance(event, CallEvent):
                self._calls.append(event.call)
        return events

    def _token_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the tokens that hold the symbols from one place to another."""
        first = bisect_left(self._starts, start)
        if first == len(self._starts) or self._starts[first] != start:
            first -= 1  # it begins inside of the token before
        return max(first, 0), bisect_left(self._starts, end)


def parse_turn(
    ids: Iterable[int],
    chosen: Format,
    tokenizer: TokenTable,
    tools: Iterable[ToolSchema] = (),
    *,
    finish: Finish = FinishReason.STOP,
    prompt: Sequence[int] = (),
) -> ParsedTurn:
    """Return what a whole turn says; `ToolCallParser` explains the arguments. Never raises."""
    parser = ToolCallParser(chosen, tokenizer, tools, prompt=prompt)
    parser.feed(ids)
    return parser.finish(finish)


def _parameters_by_name(tools: Iterable[ToolSchema]) -> dict[str, Mapping[str, Any]]:
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}
