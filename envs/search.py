"""Questions of several hops over a small corpus of made-up facts, with a search tool.

The user asks, for example, for the mayor of the birthplace of Ilva Brandt. The policy searches for
Ilva Brandt, reads where she was born, searches for that town, and answers. A search returns the
two documents that share most words with the query, rare words and those of titles counting more.
The rules are those of `questions`, with six calls. `task.data` has the `start` of the chain and
its `relations`.

The tool is slow, by `LATENCY`: a turn that calls it waits for a heavy-tailed time of one second in
the mean and at most 20, drawn from `env.latency.seed`, the task, the member and the turn. A
recipe's `env.latency` replaces it; `constant` with a mean of 0 makes the tool quick. The task is
for pretrained policies: from random weights nobody learns to read in minutes.

Invariant: train and eval tasks share no question; each has exactly one right answer.
"""

import math
import random
import re
from collections.abc import Sequence
from functools import cache, partial

from .base import Split, Task
from .latency import LatencyConfig
from .messages import Message, ToolCall
from .questions import QuestionEnv, Questions
from .search_corpus import RELATIONS, corpus
from .spec import EnvSpec
from .tools import ToolError, tool

MAX_CALLS = 6
SHOWN = 2  # documents of an answer
SYSTEM = "Find facts with the search tool, one after another. Then reply with the answer alone."

LATENCY = LatencyConfig("pareto", mean_seconds=1.0, alpha=1.5, max_seconds=20.0)

_HOPS = (2, 3)
_TITLE_WEIGHT = 2
_WORD = re.compile(r"[a-z0-9]+")
_EVAL_EVERY = 10


def search(query: str) -> str:
    """Search a small encyclopedia.

    Args:
      query: words to look for, such as a name.
    """
    scores: dict[str, float] = {}
    for word in sorted(set(_words(query)) & _index().keys()):  # so that sums are equal
        for entity, weight in _index()[word].items():
            scores[entity] = scores.get(entity, 0.0) + weight
    if not scores:
        raise ToolError(f"nothing found for {query[:60]!r}")
    best = sorted(scores, key=lambda entity: (-scores[entity], entity))
    return "\n".join(corpus().documents[entity] for entity in best[:SHOWN])


TOOL = tool(search)


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw different questions; nine tenths of them all are for training.

    The split is fixed, so it doesn't depend on the seed.

    Raises:
      ValueError: if the split has fewer questions than `count`.
    """
    own = _questions()[split]
    if not 0 <= count <= len(own):
        raise ValueError(f"count must be 0 to {len(own)} for search {split!r}, got {count}")
    return random.Random(f"search {split} {seed}").sample(own, count)


def expert(task: Task) -> tuple[Message, ...]:
    """Script the best play: search for each link of the chain, then reply with the last."""
    messages, at = list(_ask(task)), task.data["start"]
    for name in task.data["relations"]:
        call = ToolCall(TOOL.name, {"query": at})
        messages += [Message("assistant", "", (call,)), Message("tool", search(at), name="search")]
        at = corpus().links[at][name]
    return (*messages, Message("assistant", at))


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script the best play."""
    return expert(task)


def is_answer(text: str, right: str) -> bool:
    """Whether a text ends with the right answer; case and punctuation don't matter.

    Example:
      >>> is_answer("It is Mount Pym.", "Mount Pym"), is_answer("Mount Pym?  No.", "Mount Pym")
      (True, False)
    """
    wanted = _words(right)
    return _words(text)[-len(wanted) :] == wanted


@cache
def _questions() -> dict[Split, list[Task]]:
    links = corpus().links
    chains: list[tuple[str, ...]] = [(name,) for name in RELATIONS]
    every: list[Task] = []
    for hops in range(2, max(_HOPS) + 1):
        chains = [(*chain, name) for chain in chains for name in RELATIONS if _fits(chain, name)]
        starts = links if hops in _HOPS else ()
        every += [_task(e, chain) for e in starts for chain in chains if chain[0] in links[e]]
    random.Random("search questions").shuffle(every)
    held_out = every[::_EVAL_EVERY]
    ids = {task.id for task in held_out}
    return {"eval": held_out, "train": [task for task in every if task.id not in ids]}


def _fits(chain: Sequence[str], name: str) -> bool:
    return RELATIONS[chain[-1]].to == RELATIONS[name].of


def _task(start: str, chain: Sequence[str]) -> Task:
    return Task(f"{start}: {', '.join(chain)}", {"start": start, "relations": list(chain)})


@cache
def _index() -> dict[str, dict[str, float]]:
    """Return what a word counts for each entity: its rarity, and more in a title."""
    documents = {entity: set(_words(text)) for entity, text in corpus().documents.items()}
    index: dict[str, dict[str, float]] = {}
    for word in set().union(*documents.values()):
        found = [entity for entity, words in documents.items() if word in words]
        rarity = math.log(len(documents) / len(found))
        titles = {entity: _TITLE_WEIGHT for entity in found if word in _words(entity)}
        index[word] = {entity: rarity * titles.get(entity, 1) for entity in found}
    return index


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ask(task: Task) -> tuple[Message, ...]:
    phrase = task.data["start"]
    for name in task.data["relations"]:
        phrase = RELATIONS[name].phrase.format(phrase)
    return Message("system", SYSTEM), Message("user", f"Name {phrase}.")


def _answer(task: Task) -> str:
    at: str = task.data["start"]
    for name in task.data["relations"]:
        at = corpus().links[at][name]
    return at


SPEC = EnvSpec(
    make=partial(QuestionEnv, Questions(_ask, _answer, is_answer, (TOOL,), MAX_CALLS)),
    tasks=tasks,
    demonstrate=demonstrate,
    best_reward=1.0,
    tools=(TOOL,),
    latency=LATENCY,
)
