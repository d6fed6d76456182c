"""The cost of a job's steps at each power limit, kept for later runs of it. Pure.

    what a round measured -> Profile -> `learned` ... `recall` -> what a later run starts from
    known profiles        -> `begin`: what a search starts from -> RecallRow
    measured trials       -> `Recollection.keep`                -> ProfileRows, and known profiles

Profiles are found again by what makes steps comparable (`Identity`), on whatever host and GPU they were
measured. The newest whole round of an identity counts; one that was cut short counts while there is no
whole one. Where nothing is known of an identity, the same workload under another driver, or with another
range of limits, does: most of what it says holds there too, and the search that starts from it measures
first and believes what it measures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from analyzers.fleet.session import Session
from analyzers.power_limit.selectors import Trial
from analyzers.results.limit_rows import AtLimit
from analyzers.results.memory import Memory
from analyzers.results.rows import ProfileRow, RecallRow
from zeus_stream.protocol.fields import Searched
from zeus_stream.protocol.notes import DeviceFound

MAX_ALIKE = 16
"""Profiles kept of one workload; the oldest go."""
MAX_KNOWN = 2_000
"""Workloads whose profiles are remembered; the oldest go."""

Workload = tuple[str, str, int, int, int | None, Searched]
"""Job, GPU model, number of GPUs, world size, batch size, control."""


class Identity(Struct, frozen=True, kw_only=True):
    """Whose steps can be compared. A batch size that is not known is no other one's."""

    job: str
    gpu_model: str
    driver: str
    """Of GPUs with several, all of them."""
    gpus: int
    world_size: int
    batch_size: int | None
    least_limit_w: float | None
    """The limits that all its GPUs may have; None: they have none."""
    highest_limit_w: float | None
    control: Searched = "power_limit"
    """Of a clock, limits are nominal powers: see `levels`."""

    @property
    def workload(self) -> Workload:
        return self.job, self.gpu_model, self.gpus, self.world_size, self.batch_size, self.control


Profile: TypeAlias = tuple[ProfileRow, ...]
"""The record of one round of one machine: a row for each limit, descending, all measured until one time."""


def identity_of(profile: Profile) -> Identity:
    return Identity(**{name: getattr(profile[0], name) for name in Identity.__struct_fields__})


def of_rows(rows: Iterable[ProfileRow]) -> tuple[Profile, ...]:
    """Return the profiles that rows are of, in any order."""
    of: dict[tuple[str, int], list[ProfileRow]] = {}
    for row in sorted(rows, key=lambda each: -each.power_limit_w):
        of.setdefault((row.session, row.round), []).append(row)
    return tuple(map(_as_newest, of.values()))


def _as_newest(rows: Sequence[ProfileRow]) -> Profile:
    """Return rows of one round with what the last of them that was stored says of all."""
    last = max(rows, key=lambda each: each.measured_wall_ns)
    until, chosen_w = last.measured_wall_ns, last.chosen_limit_w
    return tuple(replace(row, measured_wall_ns=until, chosen_limit_w=chosen_w) for row in rows)


def trials(limits: Iterable[AtLimit]) -> tuple[Trial, ...]:
    """Return what is known of each limit as a search wants it."""
    return tuple(
        Trial(round(at.power_limit_w * 1000), round(at.energy_j * 1000), round(at.duration_s * 1e9), at.steps)
        for at in limits
    )


def learned(profiles: Iterable[Profile], new: Profile) -> tuple[Profile, ...]:
    """Return the profiles of a workload that are worth keeping, with one more, or with more of one."""
    newest: dict[tuple[Identity, bool], Profile] = {}
    round_of = new[0].session, new[0].round
    others = [each for each in profiles if (each[0].session, each[0].round) != round_of]
    for each in sorted([*others, new], key=_measured_wall_ns):
        newest[identity_of(each), each[0].chosen_limit_w is not None] = each
    return tuple(sorted(newest.values(), key=_measured_wall_ns)[-MAX_ALIKE:])


def recall(profiles: Iterable[Profile], identity: Identity, forgotten_wall_ns: int = 0) -> Profile | None:
    """Return the profile a run starts from, if one of its workload is known and not forgotten."""
    known = [each for each in profiles if _measured_wall_ns(each) > forgotten_wall_ns]
    return max(
        known,
        key=lambda each: (
            identity_of(each) == identity,
            each[0].chosen_limit_w is not None,
            _measured_wall_ns(each),
        ),
        default=None,
    )


def _measured_wall_ns(profile: Profile) -> int:
    return profile[0].measured_wall_ns


class KnownProfiles:
    """The profiles that later runs may start from. The interpreter owns it; runs read and add."""

    NOT_STATE: ClassVar = frozenset[str](("recalled", "forgotten_wall_ns", "_of"))
    """They are rows of the archive, and a file."""

    def __init__(self, memory: Memory) -> None:
        """``memory``: from before this analyzer started."""
        self.recalled: Mapping[tuple[str, int], RecallRow] = memory.recalled
        """What runs recalled the first time they were interpreted, by session of the lead and round."""
        self.forgotten_wall_ns: Mapping[str, int] = {}
        """By job: profiles measured until then are not used (UTC, ns)."""
        self._of: dict[Workload, tuple[Profile, ...]] = {}
        for profile in of_rows(memory.profiles):
            workload = identity_of(profile).workload
            self._of[workload] = learned(self._of.get(workload, ()), profile)

    def add(self, profile: Profile) -> None:
        """Add a profile, or replace an earlier state of it. Of too many workloads, the oldest goes."""
        workload = identity_of(profile).workload
        self._of[workload] = learned(self._of.pop(workload, ()), profile)
        if len(self._of) > MAX_KNOWN:
            del self._of[next(iter(self._of))]

    def find(self, identity: Identity) -> Profile | None:
        """Return the profile that a run starts from, if one of its workload is known."""
        known = self._of.get(identity.workload, ())
        return recall(known, identity, self.forgotten_wall_ns.get(identity.job, 0))


# ---- the memory of one run ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Recollection:
    """Of a run, as long as its ranks are the same."""

    recalled: RecallRow
    """What was remembered when it began."""
    _run: str
    _known: KnownProfiles
    _lead: Session
    _identity: Identity | None
    """None: its GPUs are of several models, and nothing is kept."""
    _sources: dict[int, tuple[str, int]]
    """By limit, mW: the run and the round that what is known of it comes from."""
    _measured_wall_ns: int = 0
    """When the last trial was whole: UTC, ns since 1970."""

    def source(self, limit_mw: int, number: int) -> tuple[str, int]:
        """Return run and round of what is known of a limit in a round of this run."""
        return self._sources.get(limit_mw, (self._run, number))

    def keep(
        self, number: int, measured: Sequence[Trial], known: Sequence[Trial], chosen_mw: int | None = None
    ) -> list[ProfileRow]:
        """Keep for later runs what a round measured and knows of each limit, and which it chose."""
        if (who := self._identity) is None or not known:
            return []
        self._sources |= {trial.limit_mw: (self._run, number) for trial in measured}
        profile = tuple(
            ProfileRow(
                session=self._lead.session,
                run=self._run,
                round=number,
                **asdict(who),
                power_limit_w=trial.limit_mw / 1000,
                steps=trial.steps,
                duration_s=trial.duration_ns / 1e9,
                energy_j=trial.energy_mj / 1000,
                measured_run=source[0],
                measured_round=source[1],
                measured_wall_ns=self._measured_wall_ns,
                chosen_limit_w=None if chosen_mw is None else chosen_mw / 1000,
            )
            for trial in sorted(known, key=lambda trial: -trial.limit_mw)
            for source in [self.source(trial.limit_mw, number)]
        )
        self._known.add(profile)
        return list(profile)

    def measured(self, ended_ns: int) -> None:
        """Note when a trial was whole, on the clock of the lead's host."""
        self._measured_wall_ns = self._lead.wall_ns(ended_ns)

    def from_whom(self, number: int) -> str:
        """Return whose profile the search of a round began with, for the reason of its decision."""
        recalled = self.recalled
        if recalled.measured_wall_ns is None or number != recalled.round:
            return ""
        on = datetime.fromtimestamp(recalled.measured_wall_ns / 1e9, UTC).date()
        return f"; measured before in run {recalled.profile_run} of {on}"


def begin(
    found: Sequence[DeviceFound],
    known: KnownProfiles,
    run: str,
    number: int,
    ranks: Sequence[Session],
    lead: Session,
    limits_mw: Sequence[int],
    control: Searched = "power_limit",
) -> Recollection:
    """Return what is known of a run's workload as its ranks begin a round, on GPUs listed once.

    When its events are read again, the answer is that of the first time, whatever is known by now.
    """
    who = _identify(found, ranks, lead, limits_mw, control)
    recalled = known.recalled.get((lead.session, number)) or _recall(
        known, who, RecallRow(session=lead.session, run=run, round=number)
    )
    sources = {round(at.power_limit_w * 1000): (at.run, at.round) for at in recalled.limits}
    return Recollection(
        recalled=recalled, _run=run, _known=known, _lead=lead, _identity=who, _sources=sources
    )


def _recall(known: KnownProfiles, who: Identity | None, nothing: RecallRow) -> RecallRow:
    if who is None or (found := known.find(who)) is None:
        return nothing
    return replace(
        nothing,
        profile_run=found[0].run,
        profile_round=found[0].round,
        measured_wall_ns=_measured_wall_ns(found),
        limits=tuple(
            AtLimit(
                at.power_limit_w, at.steps, at.duration_s, at.energy_j, at.measured_run, at.measured_round
            )
            for at in found
        ),
    )


def _identify(
    found: Sequence[DeviceFound],
    ranks: Sequence[Session],
    lead: Session,
    limits_mw: Sequence[int],
    control: Searched,
) -> Identity | None:
    """Return what a run's trials can be compared by; None for GPUs of several models."""
    models = {device.name for device in found}
    if len(models) != 1:
        return None
    return Identity(
        job=lead.started.job,
        gpu_model=models.pop(),
        driver=", ".join(sorted({device.driver for device in found})),
        gpus=len(found),
        world_size=len(ranks),
        batch_size=lead.batch_size,
        least_limit_w=limits_mw[-1] / 1000 if limits_mw else None,
        highest_limit_w=limits_mw[0] / 1000 if limits_mw else None,
        control=control,
    )
