"""The rows that an analyzer reads at its start, beside the frames that it replays. Pure."""

from collections.abc import Mapping

from msgspec import Struct, field

from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.rows import GpuRow, InstructionRow, JobRow, ProfileRow, RecallRow, TryRow


class Begun(Struct, frozen=True):
    """One rank of a run."""

    session: str
    run: str
    start: int
    """The start of the analyzer under whose settings it goes."""
    over: bool


class KnownOwners(Struct, frozen=True, kw_only=True):
    """To whom jobs, runs and sessions belong, where it is known; the latest last."""

    jobs: Mapping[str, int] = field(default_factory=dict)
    """By job, the user of its first run."""
    runs: Mapping[str, int] = field(default_factory=dict)
    """By run, its user."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """By session, its host."""


class Memory(Struct, frozen=True, kw_only=True):
    """Facts of earlier starts that an analyzer needs beyond what it interprets again; none by default."""

    sessions: tuple[str, ...] = ()
    """The sessions that begin in what is replayed, or that may come again from a collector's log."""
    interpreted: Mapping[str, int] = field(default_factory=dict)
    """By log, the offset that is to be interpreted next."""
    begun: tuple[Begun, ...] = ()
    """Ranks of these sessions, the first to begin first."""
    settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By start of an analyzer under which a session began, its settings as they were spelled."""
    profiles: tuple[ProfileRow, ...] = ()
    """The profiles that searches have left for later runs."""
    recalled: Mapping[tuple[str, int], RecallRow] = field(default_factory=dict)
    """By session of the lead and round, what runs remembered as their search began."""
    instructions: tuple[InstructionRow, ...] = ()
    """Profiles of pipelines, of the newest run of each job, GPU model and number of stages."""
    gpus: tuple[GpuRow, ...] = ()
    """As they were seen last."""
    uses: tuple[EarlierUse, ...] = ()
    """Uses of GPUs that ended after the first of these sessions of their host began."""
    jobs: tuple[JobRow, ...] = ()
    """The latest version of every job that recurs."""
    tries: tuple[TryRow, ...] = ()
    """Their latest tries of all versions."""
    owners: KnownOwners = KnownOwners()
