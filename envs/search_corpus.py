"""A small corpus of made-up facts: people, towns and rivers of a country that doesn't exist.

Each of the 180 documents is about one entity and names others, so that a question such as "the
mayor of the birthplace of Ilva Brandt" takes one document after another. Nothing of it can be
known from elsewhere.

Invariant: the corpus is the same in every process.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_FIRST = [
    "Ada",
    "Bero",
    "Cilla",
    "Dov",
    "Edda",
    "Fenn",
    "Gisa",
    "Hark",
    "Ilva",
    "Joss",
    "Kesta",
    "Lorn",
]
_LAST = [
    "Almery",
    "Brandt",
    "Corvin",
    "Dray",
    "Ellis",
    "Farrow",
    "Gant",
    "Hollis",
    "Imber",
    "Jarrow",
]
_TOWN_STARTS = ["Mar", "Kel", "Thorn", "Ash", "Bram", "Dun", "Fal", "Gris"]
_TOWN_ENDS = ["wick", "ford", "by", "holm", "stead"]
_RIVERS = [
    "Arle",
    "Benn",
    "Corle",
    "Desk",
    "Ebble",
    "Foss",
    "Garn",
    "Hyle",
    "Ister",
    "Kenn",
    "Lugg",
    "Marn",
    "Nadder",
    "Orr",
    "Pell",
    "Quarle",
    "Rhee",
    "Sorn",
    "Tawe",
    "Usk",
]
_PEAKS = [
    "Grey Horn",
    "Old Sister",
    "Mount Pym",
    "Stone Chair",
    "Cold Fell",
    "Raven Top",
    "Long Man",
    "White Nab",
]
_TRADES = ["baker", "cooper", "dyer", "glazier", "mason", "printer", "saddler", "weaver"]


@dataclass(frozen=True)
class Relation:
    """A link from each entity of a kind to something else.

    Attributes:
      of: the kind of entity: "person", "town" or "river".
      to: the kind of what it leads to; "" where no link goes on.
      phrase: names the target, given the entity as `{}`.
    """

    of: str
    to: str
    phrase: str


RELATIONS: Mapping[str, Relation] = {
    "birthplace": Relation("person", "town", "the birthplace of {}"),
    "teacher": Relation("person", "person", "the teacher of {}"),
    "mayor": Relation("town", "person", "the mayor of {}"),
    "river": Relation("town", "river", "the river of {}"),
    "founded": Relation("town", "", "the year in which {} was founded"),
    "ferryman": Relation("river", "person", "the ferryman of {}"),
    "peak": Relation("river", "", "the peak where {} rises"),
}


@dataclass(frozen=True)
class Corpus:
    """All facts, as links and as text.

    Attributes:
      links: entity → name of a relation → what it leads to.
      documents: entity → text.
    """

    links: Mapping[str, Mapping[str, str]]
    documents: Mapping[str, str]


@cache
def corpus() -> Corpus:
    """Return the corpus."""
    rng = random.Random("the country that doesn't exist")
    people = [f"{first} {last}" for first in _FIRST for last in _LAST]
    towns = [start + end for start in _TOWN_STARTS for end in _TOWN_ENDS]
    rivers = [f"the {name}" for name in _RIVERS]
    links, documents = {}, {}
    for person in people:
        teacher = rng.choice([other for other in people if other != person])
        links[person] = {"birthplace": rng.choice(towns), "teacher": teacher}
        text = "{} is a {}, born in {birthplace}, and learnt the trade from {teacher}."
        documents[person] = text.format(person, rng.choice(_TRADES), **links[person])
    for town, year in zip(towns, rng.sample(range(1100, 1700), len(towns)), strict=True):
        mayor, river = rng.choice(people), rng.choice(rivers)
        links[town] = {"mayor": mayor, "river": river, "founded": str(year)}
        text = "{} is a town on {river}. It was founded in {founded}; its mayor is {mayor}."
        documents[town] = text.format(town, **links[town])
    for river in rivers:
        links[river] = {"ferryman": rng.choice(people), "peak": rng.choice(_PEAKS)}
        text = "{} is a river that rises on {peak}. Its ferryman is {ferryman}."
        documents[river] = text.format(river.capitalize(), **links[river])
    return Corpus(links, documents)
