"""The ranks of a run: those that are there, their lead, and those that a machine is about. Pure."""

from collections.abc import Sequence

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.fleet.session import Session, Span
from analyzers.power_limit import visits
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search import levels
from analyzers.power_limit.search.levels import Level
from analyzers.power_limit.visits import StepBegan
from zeus_stream.protocol.fields import are_of_one_run, spell_profiles
from zeus_stream.protocol.notes import DeviceFound

RESTORING_NS = 200_000_000
"""From when a collector restores a limit until it notes that the lease has ended, at the most."""


class Ranks:
    """The ranks of one run."""

    def __init__(self, run: str, fleet: Fleet, pending: Pending) -> None:
        """Begin without any; ``pending``: who may set limits."""
        self.sessions: dict[str, Session] = {}
        self.lead: Session | None = None
        """The lowest rank there is, once a step has begun."""
        self.about: tuple[Session, ...] = ()
        """Those the machine is about; none while there is no machine."""
        self.changed: tuple[str, int] | None = None
        """What became of the last ones, and when (frame time of the lead's host)."""
        self.now: Clocks = {}
        """Frame times at the event under way, by host."""
        self.run = run
        self.fleet = fleet
        self.pending = pending

    @property
    def now_ns(self) -> int:
        """Frame time of the lead's host; 0: there is no lead."""
        return self.now[self.lead.host] if self.lead else 0

    @property
    def over(self) -> bool:
        return all(session.ended is not None for session in self.sessions.values())

    def choose_lead(self) -> Session | None:
        """Return the lowest rank that has not ended."""
        living = [session for session in self.sessions.values() if session.ended is None]
        return min(living, key=lambda session: session.started.rank, default=None)

    def gather(self, lead: Session, t_ns: int, timeout_ns: int) -> bool:
        living = [session for session in self.sessions.values() if session.ended is None]
        ranks = tuple(session for session in living if session.admitted)
        complete = len(living) == len(ranks) >= lead.started.world_size
        since_ns = max(lead.started.t_ns, self.changed[1] if self.changed else 0)
        if not (complete or (t_ns - since_ns >= timeout_ns and lead.admitted)):
            return False
        self.about = ranks
        return True

    def gathered(self, timeout_ns: int) -> str | None:
        """Return with whom a round begins, where that is not all of them from the start."""
        assert self.lead is not None
        world_size = self.lead.started.world_size
        if self.changed is None and len(self.about) >= world_size:
            return None
        why = self.changed[0] if self.changed else f"not all came within {timeout_ns / 1e9:g} s"
        return f"{why}: limits are looked for with {len(self.about)} of {world_size} ranks"

    def disperse(self, why: str) -> None:
        """Have no machine be about any of them: they are others than it was about."""
        self.pending.dismiss(self.run)
        self.lead, self.about = self.choose_lead() or self.lead, ()
        self.changed = why, self.now_ns

    def set_aside(self) -> None:
        """Have no machine be about any of them, and leave it so: they cannot be interpreted."""
        self.pending.dismiss(self.run)
        self.about, self.lead = (), None

    def gpus(self) -> list[str]:
        return list(dict.fromkeys(gpu for session in self.about for gpu in session.gpus))

    def devices(self) -> list[DeviceFound]:
        found = (self.fleet.gpus[gpu].found for gpu in self.gpus())
        return [device for device in found if device is not None]

    def power_profiles(self) -> str | None:
        """Return the workload power profiles in force on its GPUs; None: they have none."""
        known = dict.fromkeys(self.fleet.gpus[gpu].profiles for gpu in self.gpus())
        return "/".join(profiles for profiles in known if profiles is not None) or None

    def limits_mw(self, settings: RunSettings) -> tuple[int, ...]:
        """Return the limits that every GPU may have, none above what was found."""
        found_mw, least_mw = [], []
        for gpu in self.gpus():
            device = self.fleet.gpus[gpu].found
            if device is None or device.min_limit_mw is None or device.found_limit_mw is None:
                return ()
            found_mw.append(device.found_limit_mw)
            least_mw.append(device.min_limit_mw)
        if not found_mw:
            return ()
        if (only_mw := settings.only_mw) is not None:
            return (min(max(only_mw, *least_mw), *found_mw),)
        ceilings_mw = filter(None, (self.fleet.gpus[gpu].timeline.ceiling_mw for gpu in self.gpus()))
        ceiling_mw = min(ceilings_mw, default=None)
        return visits.limits_mw(min(found_mw), max(least_mw), settings.stride_mw, ceiling_mw)

    def clock_levels(self) -> tuple[Level, ...]:
        """Return the clocks that every GPU may have, as far as a search visits them."""
        known: list[frozenset[int]] = []
        found_mw = []
        for gpu in self.gpus():
            device = self.fleet.gpus[gpu].found
            if device is None or device.found_limit_mw is None:
                return ()
            known.append(frozenset(device.graphics_clocks_mhz))
            found_mw.append(device.found_limit_mw)
        if not known:
            return ()
        return levels.clock_levels(frozenset.intersection(*known), min(found_mw))

    def under_way(self, gpu: str, t_ns: int | None) -> StepBegan | None:
        """Return the lead's step under way when something happened to a GPU, on its host's clock."""
        rank = next((session for session in self.about if gpu in session.gpus), None)
        if t_ns is None or rank is None or self.lead is None:
            return None
        index = rank.last_before(t_ns - RESTORING_NS)
        began_ns = None if index is None else self.lead.began_ns(index)
        return None if index is None or began_ns is None else StepBegan(index, began_ns)

    def barred(self, levels: Sequence[Level], settings: RunSettings) -> str | None:
        """Return why this run may not command, if it may not."""
        for session in self.about:
            if session.barred is not None:
                return session.barred
            if session.admitted and not session.admitted.may_command:
                return session.admitted.reason
        gpus = self.gpus()
        for gpu in gpus:
            other = self.pending.commander(gpu)
            if other is None or other == self.run:
                continue
            if are_of_one_run(self.run, other):
                return f"the search follows {other}, the session of this script whose steps began first"
            return f"{gpu}: run {other} sets its power limit already. Wait until it has ended."
        if not gpus:
            return "the run uses no GPU"
        if settings.profiles is not None and any(self.fleet.gpus[gpu].profiles is None for gpu in gpus):
            return (
                f"not all of its GPUs have power profiles, and {spell_profiles(settings.profiles)} is wanted"
            )
        lacking = "graphics clock" if settings.control == "graphics_clock" else "power limit"
        return None if levels else f"its GPUs have no {lacking} in common that could be set"


def instants_ns(session: Session, spans: Sequence[Span], opened: Sequence[int]) -> list[int]:
    """Return when spans of a rank's steps began and were whole, and when steps began, if remembered."""
    edges = [edge for span in spans if (found := session.edges(span)) for edge in found]
    return edges + [began for index in opened if (began := session.began_ns(index)) is not None]
