"""What is proved of a chat template before a run: that a turn's delta depends on nothing before.

Invariant: what `prove` returns went through the proof. It writes made-up conversations that
differ in what the policy said, thought and called, and compares what stands after the closing
token: it must be the same text after all of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...envs.messages import Message, ToolCall
from ..errors import ConfigError
from .chat_format import QUESTION, ChatFormat, turn_before
from .chat_template import ChatTemplate, TemplateRefusal
from .closing import MARK, Closing, Tails, after_mark
from .conversation import Abilities, ToolSchema, Writer
from .tokenizer import Tokenizer
from .veil import Veil

_TOOL: ToolSchema = {
    "name": "zqtoolqz",
    "description": "Looks a word up.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string", "description": "The word."}},
        "required": ["word"],
    },
}
_NEXT = Message("user", "zqnextqz")
_ANSWER = Message("tool", "zqanswerqz", name="zqtoolqz")
_CALL = turn_before([_ANSWER])
_OTHER_CALL = ToolCall("zqotherqz", {"number": 3, "word": MARK})
_FEWEST = 3  # histories that must agree

# What the policy may have said before. Each turn ends with the mark.
_SAID = (
    Message("assistant", MARK),
    Message("assistant", f"zqlongerqz, and more.\n\n{MARK}"),
    Message("assistant", MARK, reasoning="zqthoughtqz"),
    Message("assistant", f"1. zqlistqz {MARK}", reasoning="zqthoughtqz\n\nzqsecondqz"),
)
_CALLED = (
    _CALL,
    replace(_CALL, tool_calls=(ToolCall("zqtoolqz", {"number": 3, "word": f"zqzq{MARK}"}),)),
    replace(_CALL, reasoning="zqthoughtqz"),
    replace(_CALL, reasoning="zqthoughtqz\n\nzqsecondqz"),
)
_SAID_AND_CALLED = replace(_CALL, content="zqlongerqz")
_EARLIER = (
    (QUESTION, Message("assistant", "zqearlierqz")),
    (QUESTION, Message("assistant", "", (ToolCall("zqtoolqz", {"word": "zq"}),)), _ANSWER,
     Message("assistant", "zqearlierqz")),
)  # fmt: skip
_HISTORIES = {
    "it rewrites a turn when the user speaks again": (_SAID[0], _NEXT),
    "it rewrites a turn with reasoning when the user speaks again": (_SAID[2], _NEXT),
    "it rewrites a turn when its calls are answered": (_CALL, _ANSWER),
    "it rewrites a turn with reasoning when its calls are answered": (_CALLED[2], _ANSWER),
}


_READ = ([QUESTION], [QUESTION, _CALL, _ANSWER])


def prove(
    template: ChatTemplate, tokenizer: Tokenizer, tools: Sequence[ToolSchema] = ()
) -> ChatFormat:
    """Prove that deltas of a template depend on nothing said before.

    Raises:
      ConfigError: where they do, or the template closes turns by no special token, with what
        it does.
    """
    try:
        chat = _closings(_writer(template, tokenizer, tools), tokenizer)
        _check(chat, [_NEXT], _SAID)
        _check(chat, [_ANSWER], _CALLED)
        return replace(chat, names_tools=_names_tools(chat), notes=tuple(_notes(chat)))
    except TemplateRefusal as refusal:
        raise ConfigError(f"no conversation can be written: {refusal}") from refusal


def _writer(template: ChatTemplate, tokenizer: Tokenizer, tools: Sequence[ToolSchema]) -> Writer:
    """Find out what the template can write by itself."""
    veil = Veil(tokenizer.specials)
    abilities = Abilities(tools=False)
    if not _writes(Writer(template, veil, (), abilities), [QUESTION, _SAID[0]], MARK):
        abilities = replace(abilities, content="parts")
    system = [Message("system", MARK), QUESTION]
    if not _writes(Writer(template, veil, (), abilities), system, MARK):
        abilities = replace(abilities, system=False)
    for arguments in ("object", "json"):
        able = replace(abilities, tools=True, arguments=arguments)
        if _knows_tools(Writer(template, veil, (_TOOL,), able)):
            abilities = able
            break
    return Writer(template, veil, tuple(tools), abilities)


def _knows_tools(writer: Writer) -> bool:
    """Say whether the template describes a tool, and writes a call and an answer."""
    asked = [QUESTION, _CALL, _ANSWER]
    return _writes(writer, [QUESTION], "zqtoolqz") and all(
        _writes(writer, asked, text) for text in (MARK, "zqanswerqz")
    )


def _writes(writer: Writer, messages: Sequence[Message], text: str) -> bool:
    try:
        return text in writer.write(messages)
    except TemplateRefusal:
        return False


def _closings(writer: Writer, tokenizer: Tokenizer) -> ChatFormat:
    tails = Tails(tokenizer)

    def closing(turn: Message, answer: Message, *, is_opening: bool | None) -> Closing:
        history = [QUESTION, turn]
        followed = writer.write([*history, answer], generate=True)
        last = after_mark(writer.write(history))
        return tails.closing(last, after_mark(followed), is_opening=is_opening)

    said = closing(_SAID[0], _NEXT, is_opening=None)
    return ChatFormat(writer, tails, said, closing(_CALL, _ANSWER, is_opening=said.is_opening))


def _check(chat: ChatFormat, answers: Sequence[Message], turns: Sequence[Message]) -> None:
    """Refuse a template whose delta depends on what the policy said in its last turn."""
    expected = chat.after(answers)
    proved = 0
    for turn in turns:
        try:
            found = chat.after_turns([QUESTION, turn], answers)
        except TemplateRefusal:
            continue  # it can't write such a turn, so none comes before
        if found != expected:
            raise ConfigError(
                "what the chat template writes after a turn depends on what the policy said in "
                f"it: {_difference(expected, found)}; use another template"
            )
        proved += 1
    if proved < _FEWEST:
        raise ConfigError(
            f"the chat template can write {proved} of {len(turns)} made-up turns, too few to "
            "know what its deltas depend on; use another template"
        )


def _names_tools(chat: ChatFormat) -> bool:
    turn = replace(_CALL, tool_calls=(_OTHER_CALL,))
    return chat.after_turns([QUESTION, turn], [_ANSWER]) != chat.after([_ANSWER])


def _notes(chat: ChatFormat) -> list[str]:
    notes = [note for note, history in _HISTORIES.items() if _rewrites(chat, *history)]
    if not all(_begins_as_read(chat, read) for read in _READ):
        notes.append("it writes what the policy has read otherwise once the policy has spoken")
    if not _is_same(chat, [QUESTION, _SAID_AND_CALLED], _ANSWER):
        notes.append("it moves what is said beside a call behind the call's answer")
    endings = [([QUESTION, _SAID[0]], _NEXT), ([QUESTION, _CALL], _ANSWER)]
    if not all(
        _is_same(chat, [*earlier, *turns], answer)
        for earlier in _EARLIER
        for turns, answer in endings
    ):
        notes.append("it writes later answers otherwise than the first one")
    return notes


def _rewrites(chat: ChatFormat, turn: Message, answer: Message) -> bool:
    """Say whether the template changes a turn when the conversation goes on."""
    history = [QUESTION, turn]
    try:
        return not chat.writer.write([*history, answer]).startswith(chat.closed(history))
    except TemplateRefusal:
        return False


def _begins_as_read(chat: ChatFormat, read: Sequence[Message]) -> bool:
    """Say whether a turn, with reasoning or without, leaves what stands before it as it was."""
    try:
        return any(chat.begins_as_read([*read, turn]) for turn in (_SAID[0], _SAID[2]))
    except TemplateRefusal:
        return True  # it never writes such a conversation
    except ConfigError:
        return False


def _is_same(chat: ChatFormat, history: Sequence[Message], answer: Message) -> bool:
    """Say whether the delta after a history is the one after the shortest."""
    try:
        return chat.after_turns(history, [answer]) == chat.after([answer])
    except TemplateRefusal:
        return True  # it never writes such a history
    except ConfigError:
        return False


def _difference(expected: str, found: str) -> str:
    place = next(
        (place for place, (one, other) in enumerate(zip(expected, found, strict=False))
         if one != other),
        min(len(expected), len(found)),
    )  # fmt: skip
    start = max(0, place - 20)
    return f"{expected[start : place + 20]!r} against {found[start : place + 20]!r}"
