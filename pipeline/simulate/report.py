"""What a simulation found, as numbers and as what JSON can hold."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from .account import Ideal, Pools, UseWatch
from .bottleneck import describe_bottleneck
from .episodes import Episode, EpisodeBook, Fate, slot_seconds
from .scenarios import Simulation

DECILES = 10


@dataclass(frozen=True)
class Measured:
    """What was measured in one run; `seconds` are virtual."""

    seconds: float
    pools: Pools
    ideal: Ideal
    book: EpisodeBook
    used: UseWatch
    preemptions: int


@dataclass(frozen=True)
class Lag:
    """Lags of the groups that were trained on, in versions; the histogram counts groups."""

    mean: float
    max: int
    histogram: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class SimulatedSchedule:
    """The schedule that was simulated, as in `Schedule`.

    Attributes:
      raised_for: as in `Simulation`.
    """

    batch_groups: int
    max_mean_lag: int
    max_lag: int
    publish_every: int
    deterministic: bool
    over_age: str
    raised_for: int | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a simulation found.

    Attributes:
      efficiency: achieved over ideal throughput, 0..1, of the groups that were trained on. No
        schedule could have done the same work in less than `ideal` says, so it is the ideal's
        time over the time that passed. The ideal knows no bound on lags.
      waste: of the generation slots' seconds that went into used or dropped work, the dropped
        ones, 0..1. Work that was on its way when the run ended, and evaluations, don't count.
      account: where all device time went; sums to 1. See `account`.
      bottleneck: what limits the run and which setting to change.
      dropped_by_length_decile: of the episodes used or dropped, the share of their slot seconds
        that was dropped, for the shortest tenth of them up to the longest, by how long they
        would have taken in full.
      episodes: started, tries of failed ones included.
      turns: asked of the policy.
      host_microseconds_per_turn: processor time of the run itself, the report left out.
    """

    scenario: str
    schedule: SimulatedSchedule
    efficiency: float
    waste: float
    lag: Lag
    account: Mapping[str, float]
    bottleneck: str
    virtual_seconds: float
    host_microseconds_per_turn: float
    groups_per_second: float
    ideal: Ideal
    dropped_by_length_decile: tuple[float, ...]
    episodes: int
    turns: int
    in_flight_max: int
    preemptions: int

    def as_record(self) -> dict[str, Any]:
        """Return it as what JSON can hold; lags of the histogram as text."""
        record = asdict(self)
        record["lag"]["histogram"] = {str(lag): n for lag, n in self.lag.histogram.items()}
        return record


def make_report(simulation: Simulation, measured: Measured, *, host_seconds: float) -> Report:
    """Compute the report of a run from what was measured."""
    book, used, seconds = measured.book, measured.used, measured.seconds
    spent = slot_seconds(book.decided)
    efficiency = measured.ideal.seconds / seconds if seconds > 0 else 1.0
    return Report(
        scenario=simulation.name,
        schedule=_schedule(simulation),
        efficiency=efficiency,
        waste=_share(spent[Fate.DROPPED], spent[Fate.DROPPED] + spent[Fate.USEFUL]),
        lag=_lag(used),
        account=measured.pools.account(),
        bottleneck=describe_bottleneck(
            measured.pools,
            measured.ideal,
            simulation,
            seconds=seconds,
            in_flight_max=book.in_flight_max,
        ),
        virtual_seconds=seconds,
        host_microseconds_per_turn=1e6 * host_seconds / max(1, book.turns),
        groups_per_second=used.groups / seconds if seconds > 0 else 0.0,
        ideal=measured.ideal,
        dropped_by_length_decile=dropped_by_decile(book.decided),
        episodes=book.started,
        turns=book.turns,
        in_flight_max=book.in_flight_max,
        preemptions=measured.preemptions,
    )


def dropped_by_decile(episodes: Iterable[Episode]) -> tuple[float, ...]:
    """Return the dropped share of the work by tenths of the episodes, the shortest first.

    Those that were neither used nor dropped are left out. How short an episode is, is what it
    was planned to take.

    Example:
      >>> twenty = [Episode(n, 0.0, planned_seconds=n, slot_seconds=1.0) for n in range(20)]
      >>> for episode in twenty:
      ...     episode.fate = Fate.DROPPED if episode.serial == 19 else Fate.USEFUL
      >>> dropped_by_decile(reversed(twenty))
      (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5)
    """
    judged = (episode for episode in episodes if episode.fate in (Fate.USEFUL, Fate.DROPPED))
    ordered = sorted(judged, key=attrgetter("planned_seconds"))
    edges = [tenth * len(ordered) // DECILES for tenth in range(DECILES + 1)]
    shares = []
    for begin, end in itertools.pairwise(edges):
        spent = slot_seconds(ordered[begin:end])
        shares.append(_share(spent[Fate.DROPPED], spent[Fate.DROPPED] + spent[Fate.USEFUL]))
    return tuple(shares)


def _schedule(simulation: Simulation) -> SimulatedSchedule:
    schedule = simulation.schedule
    return SimulatedSchedule(
        batch_groups=schedule.batch_groups,
        max_mean_lag=schedule.max_mean_lag,
        max_lag=schedule.max_lag,
        publish_every=schedule.publish_every,
        deterministic=schedule.deterministic,
        over_age=schedule.over_age,
        raised_for=simulation.raised_for,
    )


def _lag(used: UseWatch) -> Lag:
    histogram = dict(sorted(used.lags.items()))
    total = sum(lag * groups for lag, groups in histogram.items())
    return Lag(_share(total, used.groups), max(histogram, default=0), histogram)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
