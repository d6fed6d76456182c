"""The memory of a run: earlier runs of its workload, and its record for later ones. Pure.

known profiles  -> `begin`: what its search starts from -> RecallRow
measured trials -> `keep`                               -> ProfileRows, and known profiles
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.profiles import Identity, KnownProfiles, Profile
from analyzers.power_limit.selectors import Trial
from analyzers.results.rows import AtLimit, ProfileRow, RecallRow
from zeus_stream.protocol.fields import Control


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
        """Keep for later runs what a round knows of each limit, and which it chose.

        Args:
            number: of the round.
            measured: in it.
            known: those, and what was remembered and holds.
            chosen_mw: None while it has not.
        """
        if (who := self._identity) is None or not known:
            return []
        self._sources |= {trial.limit_mw: (self._run, number) for trial in measured}
        profile = Profile(
            identity=who,
            session=self._lead.session,
            run=self._run,
            round=number,
            measured_wall_ns=self._measured_wall_ns,
            chosen_w=None if chosen_mw is None else chosen_mw / 1000,
            limits=tuple(
                AtLimit(
                    trial.limit_mw / 1000,
                    trial.steps,
                    trial.duration_ns / 1e9,
                    trial.energy_mj / 1000,
                    *self.source(trial.limit_mw, number),
                )
                for trial in sorted(known, key=lambda trial: -trial.limit_mw)
            ),
        )
        self._known.add(profile)
        return profile.rows

    def measured(self, ended_ns: int) -> None:
        """Note when a trial was whole, on the clock of the lead's host."""
        self._measured_wall_ns = self._lead.wall_ns(ended_ns)

    def from_whom(self, number: int) -> str:
        """Return whose profile the search of a round began with, for the reason of its decision."""
        recalled = self.recalled
        if recalled.measured_wall_ns is None or number != recalled.round:
            return ""
        on = datetime.fromtimestamp(recalled.measured_wall_ns / 1e9, UTC).date()
        return f"; remembered from run {recalled.profile_run} of {on}"


def begin(
    fleet: Fleet,
    known: KnownProfiles,
    run: str,
    number: int,
    ranks: Sequence[Session],
    lead: Session,
    limits_mw: Sequence[int],
    control: Control = "power_limit",
) -> Recollection:
    """Return what is known of a run's workload as its ranks begin a round.

    When its events are read again, the answer is that of the first time, whatever is known by now.
    """
    who = _identify(fleet, ranks, lead, limits_mw, control)
    recalled = known.recalled.get((lead.session, number)) or _recall(
        known, who, RecallRow(session=lead.session, run=run, round=number)
    )
    sources = {round(at.power_limit_w * 1000): (at.run, at.round) for at in recalled.limits}
    return Recollection(
        recalled=recalled, _run=run, _known=known, _lead=lead, _identity=who, _sources=sources
    )


def _recall(known: KnownProfiles, who: Identity | None, nothing: RecallRow) -> RecallRow:
    if who is None:
        return nothing
    if (found := known.find(who)) is None:
        return nothing
    return replace(
        nothing,
        profile_run=found.run,
        profile_round=found.round,
        measured_wall_ns=found.measured_wall_ns,
        limits=found.limits,
    )


def _identify(
    fleet: Fleet, ranks: Sequence[Session], lead: Session, limits_mw: Sequence[int], control: Control
) -> Identity | None:
    """Return what a run's trials can be compared by; None for GPUs of several models."""
    gpus = dict.fromkeys(gpu for session in ranks for gpu in session.gpus)
    found = [device for gpu in gpus if (device := fleet.gpus[gpu].found) is not None]
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
