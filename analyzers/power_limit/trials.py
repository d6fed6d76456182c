"""The cost of steps at a limit, over all ranks and GPUs of a run. Pure.

spans of steps, ranks, meters of their GPUs -> `taken` -> `trial_row`, and with another block of it `joined`
rows of trials -> `added_up`: what is known of each limit
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Session, Span
from analyzers.measurement.counter_kind import COVERED
from analyzers.measurement.energy import Meter, NoEnergy, calibrated, measure
from analyzers.power_limit.search.host_delays import delay_ns
from analyzers.power_limit.search.step_kinds import halves
from analyzers.power_limit.search.visit_blocks import by_limit
from analyzers.power_limit.selectors import Halves, Trial
from analyzers.power_limit.visits import MeasureTrial, Purpose
from analyzers.results.rows import TrialRow


class Taken(Struct, frozen=True):
    """The cost of some steps."""

    energy_uj: Mapping[str, int]
    """By GPU."""
    duration_ns: int
    """The slowest rank's."""
    temperatures_c: tuple[float, ...]
    """Of its GPUs and spans, as far as they are known."""
    locked: bool
    """A sensor saw the same parts of steps again and again."""
    delay_ns: int = 0
    """Time that the slowest rank's steps took above the quickest of them, from batch to the next ask."""
    halves: Halves | None = None
    """Of the same steps."""

    @property
    def energy_mj(self) -> int:
        return round(sum(self.energy_uj.values()) / 1000)


def taken(
    spans: Sequence[Span],
    ranks: Iterable[Session],
    meter_of: Callable[[str], Meter],
    now_ns: int,
    *,
    timely: bool,
) -> Taken | NoEnergy | None:
    """Return what spans of steps took, each rank's on the clock of its own host.

    ``meter_of``: by UUID. ``timely``: readings and boundaries may still come; None while they are awaited.
    """
    duration_ns = delayed_ns = 0
    energy_uj: dict[str, int] = {}
    temperatures_c: list[float] = []
    locked, halved = False, None
    of_ranks: list[tuple[Session, list[tuple[int, int]]]] = []
    for session in ranks:
        edges = [edge for span in spans if (edge := session.edges(span)) is not None]
        if len(edges) < len(spans):
            return None if timely else NoEnergy(f"the steps of rank {session.started.rank} are not known")
        of_ranks.append((session, edges))
    if timely and not all(
        _settled(meter_of(gpu), edges[-1][1], now_ns) for session, edges in of_ranks for gpu in session.gpus
    ):
        return None
    for session, whole in of_ranks:
        begins, ends = [begin for begin, _ in whole], [end for _, end in whole]
        if (lasted_ns := sum(ends) - sum(begins)) > duration_ns:
            duration_ns = lasted_ns
            steps_ns = [step_ns for span in spans for step_ns in session.steps_ns(span)]
            delayed_ns, halved = delay_ns(steps_ns), halves(steps_ns)
        for gpu in session.gpus:
            if gpu in energy_uj:
                continue
            meter = meter_of(gpu)
            timeline, energy_uj[gpu] = meter.timeline, 0
            shaped = _shaped(meter)
            found = meter.measure(begins, ends, now_ns) if shaped else measure(timeline, begins, ends)
            for energy in calibrated(timeline, found, begins, ends):
                if isinstance(energy, NoEnergy):
                    return NoEnergy(f"{gpu}: {energy.reason}")
                energy_uj[gpu] += energy.energy_uj
                locked |= energy.phase_coverage is not None and energy.phase_coverage < COVERED
            locked |= shaped and meter.shape.counter.beats(begins[0], ends[-1]) is True
            known = (timeline.temperature_c(begin, end) for begin, end in whole)
            temperatures_c += [temperature for temperature in known if temperature is not None]
    return Taken(energy_uj, duration_ns, tuple(temperatures_c), locked, delayed_ns, halved)


def _shaped(meter: Meter) -> bool:
    """Return whether the events are to say what the counter did not see, as a boxcar's."""
    return meter.shape.window_ns is not None


def _settled(meter: Meter, t_ns: int, now_ns: int) -> bool:
    """Return whether the energy until an instant can be measured by now."""
    return meter.settled(t_ns, now_ns) if _shaped(meter) else meter.timeline.settled(t_ns)


def trial_row(
    run: str,
    asked: MeasureTrial,
    took: Taken,
    cost: float | None,
    lead: Session,
    clock_mhz: int | None = None,
) -> TrialRow:
    """Return the row of a trial. ``cost``: in joules, by the run's selector. The instants are the lead's."""
    first, last = lead.edges(asked.spans[0]), lead.edges(asked.spans[-1])
    assert first is not None
    assert last is not None
    return TrialRow(
        run=run,
        number=asked.visit,
        round=asked.round,
        power_limit_w=asked.limit_mw / 1000,
        clock_mhz=clock_mhz,
        steps=asked.steps,
        duration_s=took.duration_ns / 1e9,
        energy_j=took.energy_mj / 1000,
        average_power_w=took.energy_mj * 1e6 / took.duration_ns,
        cost=cost,
        temperature_c=fmean(took.temperatures_c) if took.temperatures_c else None,
        began_ns=first[0],
        ended_ns=last[1],
        confirms=asked.purpose is Purpose.CONFIRM,
    )


def joined(row: TrialRow, more: TrialRow) -> TrialRow:
    """Return the row of a visit with one more block of its steps."""
    known = [(of.temperature_c, of.duration_s) for of in (row, more)]
    warm = [(temperature_c, s) for temperature_c, s in known if temperature_c is not None]
    duration_s, energy_j = row.duration_s + more.duration_s, row.energy_j + more.energy_j
    return replace(
        row,
        steps=row.steps + more.steps,
        duration_s=duration_s,
        energy_j=energy_j,
        average_power_w=energy_j / duration_s,
        cost=None if row.cost is None or more.cost is None else row.cost + more.cost,
        temperature_c=sum(c * s for c, s in warm) / sum(s for _, s in warm) if warm else None,
        began_ns=min(row.began_ns, more.began_ns),
        ended_ns=max(row.ended_ns, more.ended_ns),
    )


def added_up(rows: Iterable[TrialRow]) -> tuple[Trial, ...]:
    """Return what was measured at each limit; measurements of one limit are added up."""
    return by_limit(
        Trial(
            round(row.power_limit_w * 1000),
            round(row.energy_j * 1000),
            round(row.duration_s * 1e9),
            row.steps,
        )
        for row in rows
    )
