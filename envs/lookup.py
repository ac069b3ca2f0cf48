"""Look up the value of a key that nobody can know, with a search tool.

The user writes a key of three letters, such as `kfa`. The policy calls the tool with the turn
`search(kfa)`, reads `kfa=482` and answers `482`. A search gives the first three entries whose keys
begin with the query; a query that no key begins with, and every other wrong call, reads `none`.
The rules are those of `questions`, with two calls. A blind guess is right once in 900 times.

Chat models are asked in words, and told what is wrong with a call.

Invariant: train and eval tasks share no key; a key's value is a function of the key alone.
"""

import itertools
import random
import re
import string
from dataclasses import replace
from functools import partial

from .base import Split, Task
from .messages import Message, ToolCall
from .questions import QuestionEnv, Questions
from .spec import EnvSpec
from .tools import ToolError, tool

CHARACTERS = string.ascii_lowercase + string.digits + "=() "
WORDS = ("search", "none")
MAX_CALLS = 2
SHOWN = 3  # entries of an answer
SYSTEM = "Find values with the search tool. Then reply with the value alone."
DEMONSTRATED_CALLS = 0.3  # the share of demonstrations that call the tool
DEMONSTRATED_CALLS_CHAT = 0.5

_KEY_LENGTH = 3
_KEYS = 26**_KEY_LENGTH
_TRAIN_KEYS = _KEYS * 9 // 10
_STRIDE = 10_863  # about the golden section of _KEYS and coprime to it: a fixed shuffle
_VALUES = range(100, 1000)
_NONE = "none"
_DIGITS = re.compile(r"\d+")


def value_of(key: str) -> str:
    """Return the value of a key, three digits."""
    return str(random.Random(f"lookup {key}").choice(_VALUES))


def search(query: str) -> str:
    """Find entries by the beginning of their key.

    Args:
      query: the key, or its first letters.
    """
    if not re.fullmatch(f"[a-z]{{1,{_KEY_LENGTH}}}", query):
        raise ToolError(_NONE)
    endings = itertools.product(string.ascii_lowercase, repeat=_KEY_LENGTH - len(query))
    keys = (query + "".join(ending) for ending in itertools.islice(endings, SHOWN))
    return " ".join(f"{key}={value_of(key)}" for key in keys)


TOOL = tool(search)


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw different keys; nine tenths of all 17,576 are for training, the rest for evaluation.

    The split is a fixed shuffle of all keys, so it doesn't depend on the seed.

    Raises:
      ValueError: if the split has fewer keys than `count`.
    """
    places = range(_TRAIN_KEYS) if split == "train" else range(_TRAIN_KEYS, _KEYS)
    if not 0 <= count <= len(places):
        raise ValueError(f"count must be 0 to {len(places)} for lookup {split!r}, got {count}")
    drawn = random.Random(f"lookup {split} {seed}").sample(places, count)
    return [Task(key, {"key": key}) for key in map(_key, drawn)]


def _key(place: int) -> str:
    letters, rest = [], place * _STRIDE % _KEYS
    for _ in range(_KEY_LENGTH):
        rest, letter = divmod(rest, 26)
        letters.append(string.ascii_lowercase[letter])
    return "".join(letters)


def expert(task: Task, *, chat: bool = False) -> tuple[Message, ...]:
    """Script the best play: search for the key, then reply with its value."""
    key = task.data["key"]
    text = "" if chat else f"{TOOL.name}({key})"
    call = ToolCall(TOOL.name, {"query": key}) if chat else ToolCall("search", {}, argument=key)
    return (
        *_ask(task, chat=chat),
        Message("assistant", text, (replace(call, raw=text),)),
        Message("tool", search(key), name=TOOL.name),
        Message("assistant", value_of(key)),
    )


def demonstrate(task: Task, rng: random.Random, *, chat: bool = False) -> tuple[Message, ...]:
    """Script a conversation: a share of them is the expert's, the others give up with `none`.

    So the format is taught, and calling the tool is left to be learnt.
    """
    if rng.random() < (DEMONSTRATED_CALLS_CHAT if chat else DEMONSTRATED_CALLS):
        return expert(task, chat=chat)
    return *_ask(task, chat=chat), Message("assistant", _NONE)


def _ask(task: Task, *, chat: bool = False) -> tuple[Message, ...]:
    if not chat:
        return (Message("user", task.data["key"]),)
    question = f"What is the value of the key {task.data['key']}?"
    return Message("system", SYSTEM), Message("user", question)


def _answer(task: Task) -> str:
    return value_of(task.data["key"])


def _ends_with(text: str, value: str) -> bool:
    """Whether the last number in a text is this one."""
    return _DIGITS.findall(text)[-1:] == [value]


QUESTIONS = Questions(_ask, _answer, str.__eq__, (TOOL,), MAX_CALLS, error_word=_NONE)

CHAT_QUESTIONS = replace(
    QUESTIONS, ask=partial(_ask, chat=True), is_answer=_ends_with, error_word=""
)

CHAT = EnvSpec(
    make=partial(QuestionEnv, CHAT_QUESTIONS),
    tasks=tasks,
    demonstrate=partial(demonstrate, chat=True),
    best_reward=1.0,
    tools=(TOOL,),
)

SPEC = replace(CHAT, make=partial(QuestionEnv, QUESTIONS), demonstrate=demonstrate, for_chat=CHAT)
