"""What a simulation found, as numbers and as what JSON can hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .account import Pools
from .bottleneck import describe_bottleneck
from .episodes import EpisodeBook, Fate, Lengths
from .scenarios import Simulation
from .watch import UseWatch

DECILES = 10


@dataclass(frozen=True)
class Ideal:
    """The least virtual seconds in which the work that was used can be done, by what limits it.

    Attributes:
      sampler: the turns, if the sampler's rows were always full.
      environments: the episodes, if as many as may be in flight always were, and none queued.
      learner: the updates, one after the other.
      critical_path: the longest episode that was used.
    """

    sampler: float
    environments: float
    learner: float
    critical_path: float

    @property
    def seconds(self) -> float:
        """The largest of them: no schedule can be faster."""
        return max(self.sampler, self.environments, self.learner, self.critical_path)


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
      waste: of all slot seconds of episodes, those whose work was dropped, 0..1.
      account: where all device time went; sums to 1. See `account`.
      bottleneck: what limits the run and which setting to change.
      dropped_by_length_decile: of the episodes used or dropped, the share of their slot seconds
        that was dropped, for the shortest tenth of them up to the longest, by how long they
        would have taken in full.
      episodes: started, tries of failed ones included.
      turns: asked of the policy.
      host_microseconds_per_turn: processor time of this simulation.
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
    efficiency = measured.ideal.seconds / seconds if seconds > 0 else 1.0
    return Report(
        scenario=simulation.name,
        schedule=_schedule(simulation),
        efficiency=efficiency,
        waste=_share(book.seconds[Fate.DROPPED], sum(book.seconds.values())),
        lag=_lag(used),
        account=measured.pools.account(),
        bottleneck=describe_bottleneck(measured.pools, simulation.schedule),
        virtual_seconds=seconds,
        host_microseconds_per_turn=1e6 * host_seconds / max(1, book.turns),
        groups_per_second=used.groups / seconds if seconds > 0 else 0.0,
        ideal=measured.ideal,
        dropped_by_length_decile=dropped_by_decile(book.lengths),
        episodes=book.started,
        turns=book.turns,
        in_flight_max=book.in_flight_max,
        preemptions=measured.preemptions,
    )


def dropped_by_decile(lengths: Lengths) -> tuple[float, ...]:
    """Return the dropped share of the work by tenths of the episodes, the shortest first.

    Example:
      >>> from array import array
      >>> half = Lengths(array("d", range(20)), array("d", [1.0] * 20), array("d", [0.0] * 20))
      >>> half.dropped[-1], half.useful[-1] = 3.0, 0.0
      >>> dropped_by_decile(half)
      (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75)
    """
    order = sorted(range(len(lengths.planned)), key=lengths.planned.__getitem__)
    edges = [tenth * len(order) // DECILES for tenth in range(DECILES + 1)]
    shares = []
    for tenth in range(DECILES):
        episodes = order[edges[tenth] : edges[tenth + 1]]
        dropped = sum(lengths.dropped[episode] for episode in episodes)
        useful = sum(lengths.useful[episode] for episode in episodes)
        shares.append(_share(dropped, dropped + useful))
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
