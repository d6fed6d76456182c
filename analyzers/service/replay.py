"""An archive fed back through the machines: the same input gives the same decisions.

    stored frames -> Interpreter, with the settings that decided then -> runs, trials, decisions again
        the same selector -> `differences` from the decisions that were stored
        another selector  -> `chosen_again`: what it would have chosen from the trials that were measured

Nothing is commanded: what came of the commands is in the frames. For that very reason another selector can
only choose among the limits that were measured; what others would have cost stays unknown.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import asdict

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.memory_rows import (
    read_begun,
    read_owners,
    read_recalled,
    read_removed_runs,
    read_settings,
)
from analyzers.archive.open_file import opened
from analyzers.archive.opening import Reader
from analyzers.archive.query import read_own
from analyzers.interpreter.interpreter import Calibrated, Interpreter, Logged
from analyzers.measurement.sensors import Gain
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.trials import added_up
from analyzers.power_limit.visits import limits_mw
from analyzers.results.memory import KnownOwners, Memory
from analyzers.results.rows import DecisionRow, GpuRow, RunRow, TrialRow
from zeus_stream.errors import RefusedError, SettingsError
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.settings import Settings, read_back

SAME = 1e-9
"""Two figures that differ relatively by less are the same: linear algebra rounds differently elsewhere."""


Watch = Callable[[Iterable[tuple[Frame, Body]]], Iterable[tuple[Frame, Body]]]
"""Passes frames through, to show progress."""


class Replayed(Struct):
    """The rows derived from the frames, the last one of each key."""

    frames: int = 0
    runs: dict[str, RunRow] = field(default_factory=dict)
    """By session."""
    gpus: dict[str, GpuRow] = field(default_factory=dict)
    trials: dict[tuple[str, int], TrialRow] = field(default_factory=dict)
    """By run and number, as are the decisions."""
    decisions: dict[tuple[str, int], DecisionRow] = field(default_factory=dict)

    def gpus_of(self, run: str) -> list[GpuRow]:
        names = dict.fromkeys(gpu for row in self.runs.values() if row.run == run for gpu in row.gpus)
        return [self.gpus[name] for name in names if name in self.gpus]

    def tried(self, run: str, profiling: int) -> tuple[Trial, ...]:
        """Return what was measured at each limit in a round of profiling."""
        return added_up(
            row
            for row in self.trials.values()
            if (row.run, row.round) == (run, profiling) and not row.confirms
        )


class Difference(Struct, frozen=True):
    """Where a decision is not what it was; None in place of a decision that is not there."""

    run: str
    number: int
    what: str
    """A column of ``decisions``, or ``decision``."""
    stored: Any
    replayed: Any


class OtherChoice(Struct, frozen=True, kw_only=True):
    """One round of profiling: the limit that was decided on, and the one that another selector chooses."""

    run: str
    round: int
    decided: DecisionRow | None
    """None: the run ended before."""
    tried: tuple[Trial, ...]
    limit_mw: int | None
    """None: it cannot choose, for the reason in ``reason``."""
    unmeasured_mw: tuple[int, ...]
    """Limits of the plan that were not visited: what they cost is not known."""
    reason: str


class Replay(Struct, frozen=True):
    """The result of a replay."""

    frames: int
    decisions: tuple[DecisionRow, ...]
    """As the machines made them again."""
    differences: tuple[Difference, ...]
    chosen_again: tuple[OtherChoice, ...]
    """The choices of another selector; empty if none was asked for."""
    left_out: int
    """Runs that began before the oldest reading that is kept."""


# ---- pure -----------------------------------------------------------------------------------------------


def interpret(
    frames: Iterable[tuple[Frame, Body]],
    plan: RunSettings,
    gains: Mapping[str, Gain],
    memory: Memory | None = None,
    plans: Mapping[str, RunSettings] | None = None,
    shared_jobs: frozenset[str] = frozenset(),
) -> Replayed:
    """Let the machines interpret frames again, in order; keep what they derive of runs and limits.

    ``plan``: for runs of sessions without one in ``plans``. ``memory``: what runs remembered then, and to
    whom jobs and runs belong.
    """
    replayed = Replayed()
    interpreter = Interpreter(plan, memory, shared_jobs=shared_jobs, began_under=plans)
    interpreter.handle(Calibrated(gains), 0)
    for frame, body in frames:
        replayed.frames += 1
        for row in interpreter.handle(Logged(frame, body), frame.t_ns).rows:
            match row:
                case RunRow():
                    replayed.runs[row.session] = row
                case GpuRow():
                    replayed.gpus[row.gpu] = row
                case TrialRow():
                    replayed.trials[row.run, row.number] = row
                case DecisionRow():
                    replayed.decisions[row.run, row.number] = row
                case _:
                    pass  # the rest decides nothing
    return replayed


def differences(stored: Iterable[DecisionRow], replayed: Iterable[DecisionRow]) -> tuple[Difference, ...]:
    """Return where two lists of decisions are not the same, by run and number."""
    before = {(row.run, row.number): row for row in stored}
    after = {(row.run, row.number): row for row in replayed}
    found = []
    for key in sorted(before.keys() | after.keys()):
        one, other = before.get(key), after.get(key)
        if one is None or other is None:
            found.append(Difference(*key, "decision", one and one.reason, other and other.reason))
            continue
        for name in DecisionRow.__struct_fields__:
            was, now = getattr(one, name), getattr(other, name)
            if not _same(was, now):
                found.append(Difference(*key, name, was, now))
    return tuple(found)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=SAME)
    return bool(one == other)


def choose_again(
    replayed: Replayed, selector: Selector, stride_mw: int, runs: Iterable[str]
) -> list[OtherChoice]:
    """Choose again from what was measured in each round of these runs, decided or not."""
    rounds: dict[tuple[str, int], DecisionRow | None] = {}
    for trial in replayed.trials.values():
        rounds.setdefault((trial.run, trial.round))
    for decision in replayed.decisions.values():
        rounds[decision.run, decision.round] = decision
    wanted = set(runs)
    return [
        _choose_again(replayed, selector, stride_mw, run, profiling, decided)
        for (run, profiling), decided in rounds.items()
        if run in wanted
    ]


def _choose_again(
    replayed: Replayed,
    selector: Selector,
    stride_mw: int,
    run: str,
    profiling: int,
    decided: DecisionRow | None,
) -> OtherChoice:
    source = (run, profiling)
    if decided is not None and decided.trials_run is not None and decided.trials_round is not None:
        source = decided.trials_run, decided.trials_round
    tried, gpus = replayed.tried(*source), replayed.gpus_of(run)
    limit_mw, reason = None, ""
    if tried:
        try:
            limit_mw = selector.choose(tried, len(gpus))
        except SettingsError as wrong:
            reason = str(wrong)
    else:
        reason = "no limit was measured" if decided is None else decided.reason
    measured = {trial.limit_mw for trial in tried}
    unmeasured = tuple(limit for limit in _limits_mw(gpus, stride_mw) if limit not in measured)
    return OtherChoice(
        run=run,
        round=profiling,
        decided=decided,
        tried=tried,
        limit_mw=limit_mw,
        unmeasured_mw=unmeasured,
        reason=reason,
    )


def _limits_mw(gpus: Sequence[GpuRow], stride_mw: int) -> tuple[int, ...]:
    """Return the limits that a run on these GPUs may visit; none if one of them has no limit."""
    found_mw = [round(gpu.found_limit_w * 1000) for gpu in gpus if gpu.found_limit_w is not None]
    least_mw = [round(gpu.min_limit_w * 1000) for gpu in gpus if gpu.min_limit_w is not None]
    if not gpus or len(found_mw) < len(gpus) or len(least_mw) < len(gpus):
        return ()
    return limits_mw(min(found_mw), max(least_mw), stride_mw)


# ---- what people see ------------------------------------------------------------------------------------


def decided(rows: Iterable[DecisionRow]) -> pa.Table:
    names = "run", "round", "selector", "power_limit_w", "energy_per_step_j", "step_ms", "steps", "reason"
    return _table(names, (asdict(row) | {"step_ms": _milli(row.step_s)} for row in rows))


def differing(found: Iterable[Difference]) -> pa.Table:
    names = "run", "decision", "what", "stored", "replayed"
    return _table(
        names,
        (
            asdict(each)
            | {"decision": each.number, "stored": _word(each.stored), "replayed": _word(each.replayed)}
            for each in found
        ),
    )


def compared(chosen: Iterable[OtherChoice], select: str) -> pa.Table:
    """Return both choices of each round, per step, and what stays unknown, as a table for people."""
    names = (
        *("run", "round", "selector", "power_limit_w", "energy_per_step_j", "step_ms"),
        *("other_selector", "other_limit_w", "other_energy_per_step_j", "other_step_ms"),
        *("energy_percent", "time_percent", "limits_measured", "not_measured_w", "reason"),
    )
    return _table(names, (_compared(each) | {"other_selector": select} for each in chosen))


def _compared(each: OtherChoice) -> dict[str, Any]:
    row: dict[str, Any] = {} if each.decided is None else asdict(each.decided)
    row |= {
        "run": each.run,
        "round": each.round,
        "step_ms": _milli(row.get("step_s")),
        "limits_measured": len(each.tried),
        "not_measured_w": " ".join(f"{limit_mw / 1000:g}" for limit_mw in each.unmeasured_mw),
        "reason": each.reason,
    }
    for trial in each.tried:
        if trial.limit_mw == each.limit_mw:
            row["other_limit_w"] = trial.limit_mw / 1000
            row["other_energy_per_step_j"] = trial.step_mj / 1000
            row["other_step_ms"] = trial.step_ns / 1e6
    row["energy_percent"] = _percent(row.get("energy_per_step_j"), row.get("other_energy_per_step_j"))
    row["time_percent"] = _percent(row["step_ms"], row.get("other_step_ms"))
    return row


def _table(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema([(name, _type(name)) for name in names]))


def _type(name: str) -> pa.DataType:
    if name in ("round", "decision", "steps", "limits_measured"):
        return pa.int64()
    is_figure = name.endswith(("_w", "_j", "_ms", "_percent")) and name != "not_measured_w"
    return pa.float64() if is_figure else pa.string()


def _milli(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _percent(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else 100 * (after / before - 1)


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


# ---- the file -------------------------------------------------------------------------------------------


def replay(
    path: Path,
    settings: Settings,
    gains: Mapping[str, Gain],
    select: str | None,
    watch: Watch = iter,
) -> Replay:
    """Replay an archive. It is only read; if an analyzer writes it, a copy of it as it is now.

    ``select``: another selector; None: the one that decided. ``watch``: passes the frames through. Raises
    StorageError: it cannot be read. RefusedError: a function decided that is not ours, and ``select`` does
    not name it. SettingsError: ``select`` or the stored settings cannot be understood.
    """
    other = None if select is None else selectors.parse(select)
    with opened(path, settings) as file:
        archive = DuckdbFile(file)
        with file.reading() as reader:
            stored = _stored(reader)
        with file.cursor() as cursor:
            removed = read_removed_runs(cursor)
            recalled, owners = read_recalled(cursor), read_owners(cursor)
            begun = [each for each in read_begun(cursor) if each.run not in removed]
            spelled = read_settings(cursor, {each.start for each in begun})
        plans = dict[int, RunSettings]()
        for start, values in spelled.items():
            then = read_back(values, str(path))
            plans[start] = RunSettings.of(then, selectors.parse(_trusted(then.select, select, path)), start)
        of_session = {each.session: plans[each.start] for each in begun if each.start in plans}
        memory = Memory(recalled=recalled, owners=KnownOwners(jobs=owners.jobs, runs=owners.runs))
        shared = frozenset(settings.shared_jobs)
        frames, again, found, chosen = 0, list[DecisionRow](), list[Difference](), list[OtherChoice]()
        for of_site, of_run in _by_site({each.run: of_session.get(each.session) for each in begun}).items():
            replayed = interpret(
                watch(archive.reader.stored_frames()), of_site, gains, memory, of_session, shared
            )
            frames = replayed.frames
            mine = [row for row in replayed.decisions.values() if row.run in of_run]
            again += mine
            found += differences([row for row in stored if row.run in of_run], mine)
            if other is not None:
                others = [run for run, plan in of_run.items() if _text(plan) != other.text]
                chosen += choose_again(replayed, other, of_site.stride_mw, others)
    return Replay(frames, tuple(again), tuple(found), tuple(chosen), len(removed))


def _by_site(plans: Mapping[str, RunSettings | None]) -> dict[RunSettings, dict[str, RunSettings]]:
    """Return the plans of runs by what of them the whole site goes by. ``plans``: by run."""
    of_site: dict[RunSettings, dict[str, RunSettings]] = {}
    for run, plan in plans.items():
        if plan is not None:
            shared = RunSettings(selector=None, stride_mw=plan.stride_mw, timeout_ns=plan.timeout_ns)
            of_site.setdefault(shared, {})[run] = plan
    return of_site


def _text(plan: RunSettings) -> str:
    return "none" if plan.selector is None else plan.selector.text


def _stored(reader: Reader) -> list[DecisionRow]:
    columns = ", ".join(DecisionRow.__struct_fields__)
    rows = read_own(reader, f"SELECT {columns} FROM decisions").to_pylist()  # noqa: S608  (our own names)
    return [DecisionRow(**row) for row in rows]


def _trusted(then: str, asked: str | None, path: Path) -> str:
    """Return the selector that decided; code that only the archive names is not run."""
    if selectors.is_foreign(then) and then != asked:
        raise RefusedError(
            f"{path}: could not be replayed: the function {then} decided then. If you trust it, name it:"
            f" --select {then}."
        )
    return then
