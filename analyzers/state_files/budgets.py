"""The power budgets of a setup, one file: what is written there, and what people read of them."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_budget.allocation import in_force, over
from analyzers.state_files.json_file import load_json, store_json
from analyzers.state_files.signal_files import parse
from zeus_stream.errors import MalformedError, RefusedError, SettingsError, StorageError, explaining
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import Budget, BudgetsSet

if TYPE_CHECKING:
    import pyarrow as pa

Ask = Callable[[str], "pa.Table"]
"""Answers SQL over the archive."""
NEVER_NS = 4_070_908_800 * 10**9
"""In 2099: a budget without an end."""
RAMP_S = 10.0
ALL = "all"
"""The name of a budget that was given none: it is about every GPU of the site."""

SUMS = """
SELECT budgets.budget, any_value(budgets.limit_w) AS budget_w, count(gpu) AS gpus,
    sum(budgeted_gpus.limit_w) AS limits_w, sum(drawn_w) AS drawn_w, any_value(budgets.reason) AS trouble
FROM budgets LEFT JOIN budgeted_gpus ON list_contains(budgets.gpus, gpu)
WHERE binding GROUP BY budgets.budget ORDER BY budgets.budget
"""
SHARES = "FROM budgeted_gpus ORDER BY ALL"
TRACKING = """
SELECT budget, round(arg_max(target_w, began_at)) AS target_w, round(arg_max(drawn_w, began_at)) AS drawn_w,
    round(100 * avg(abs(error_w / nullif(target_w, 0))), 2) AS error_percent, count(*) AS minutes,
    count(*) FILTER (outside) AS minutes_outside
FROM budget_tracking WHERE began_at >= now()::TIMESTAMP - INTERVAL 1 DAY GROUP BY budget ORDER BY budget
"""


# ---- what is written -------------------------------------------------------------------------------------


def moment(text: str, now: datetime) -> datetime:
    """Return the instant written so: ``18:00`` (the next, local), or ISO 8601. Raises SettingsError."""
    try:
        if re.fullmatch(r"\d{1,2}:\d\d", text):
            hour, minute = map(int, text.split(":"))
            today = datetime.combine(now.date(), time(hour, minute)).astimezone()
            if today > now:
                return today
            return datetime.combine(now.date() + timedelta(days=1), time(hour, minute)).astimezone()
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as wrong:
        raise SettingsError(
            f"{text!r}: could not be understood: it is no time. Write 18:00, or 2026-05-01T18:00."
        ) from wrong


def nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1e6) * 1000


def members(group: str, words: tuple[str, ...], groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return which GPUs a budget of this name is about; none: every GPU of the site.

    ``words``: named with it. Raises SettingsError: a group of the settings and these are two things.
    """
    what = f"budget {group}: could not be set:"
    if group in groups and words:
        raise SettingsError(
            f"{what} the settings say already that it is about {', '.join(groups[group])}. Leave out --gpus"
            " and --hosts, or give the budget another name."
        )
    if not words and group not in (*groups, ALL):
        known = f"Name one of {', '.join(groups)}, or give" if groups else "Give"
        raise SettingsError(
            f"{what} there is no such group in the settings, and nothing else names GPUs. {known} --gpus or"
            " --hosts. Leave out --group for every GPU of the site."
        )
    return groups.get(group, words)


def checked(budget: Budget, source: str) -> Budget:
    """Return a budget that can be. Raises SettingsError, naming ``source``."""
    try:
        codec.decode(codec.encode(BudgetsSet(0, (budget,))), BudgetsSet)
    except MalformedError as wrong:
        raise SettingsError(f"{source}: budget {budget.group[:50]}: {wrong}") from wrong
    if budget.end_ns <= budget.begin_ns:
        raise SettingsError(
            f"{source}: budget {budget.group}: could not be set: it ends before it begins."
            " Name a later --until."
        )
    return budget


# ---- the file --------------------------------------------------------------------------------------------


class StoredBudget(Struct, kw_only=True, omit_defaults=True, rename={"begin": "from"}):
    """A budget as the file has it, under the name of its group: watts, and times with their offset."""

    watts: float | None = None
    """None: it follows a signal."""
    follow: str | None = None
    """File of that signal (`signal_files`), read again while the budget holds."""
    ramp_w_min: float | None = None
    """Largest change of what it follows, W a minute; None: any."""
    first: tuple[str, ...] = ()
    """Jobs that get watts first, in order."""
    gpus: tuple[str, ...] | None = None
    """None: those of the group of this name in the settings."""
    set: datetime | None = None
    begin: datetime | None = None
    until: datetime | None = None
    ramp_s: float | None = None
    """None: `RAMP_S`."""
    before_watts: float | None = None


def load(path: Path, groups: Mapping[str, tuple[str, ...]]) -> tuple[Budget, ...]:
    """Return the budgets; none if there is no file. Raises StorageError: it cannot be understood."""
    what, cure = "the power budgets", "Those before hold on. Mend it, or move it away."
    stored = load_json(path, dict[str, StoredBudget], what, cure) or {}
    try:
        return tuple(checked(_read(group, each, groups), f"{path}") for group, each in stored.items())
    except SettingsError as wrong:
        raise StorageError(f"{path}: {what} could not be read: {wrong} {cure}") from wrong


def load_targets(path: Path) -> tuple[tuple[int, int], ...]:
    """Return a load signal: since when (UTC, ns) each value, mW. Raises SettingsError, StorageError."""
    with explaining(StorageError, f"{path}: could not be read", "Name a file that is there."):
        text = path.read_text(encoding="utf-8")
    rows = parse(text, str(path), 0)
    targets = tuple((row.begin_ns, round(row.value * 1000)) for row in rows if row.value is not None)
    if rows[0].name != "load" or min(watts for _, watts in targets) < 0:
        raise SettingsError(
            f"{path}: could not be followed: it is no load, or below 0. Write name=load, and watts from 0."
        )
    return targets


def _read(group: str, stored: StoredBudget, groups: Mapping[str, tuple[str, ...]]) -> Budget:
    def at(moment: datetime | None, default_ns: int) -> int:
        return default_ns if moment is None else nanoseconds(moment)

    set_ns = at(stored.set, 0)
    if (stored.watts is None) == (stored.follow is None):
        raise SettingsError(f"budget {group}: it has no limit, or two. Give it watts or follow.")
    targets = () if stored.follow is None else load_targets(Path(stored.follow))
    return Budget(
        group=group,
        limit_mw=max(targets[0][1], 1) if stored.watts is None else round(stored.watts * 1000),
        targets=targets,
        follows=stored.follow or "",
        ramp_mw_s=round((stored.ramp_w_min or 0) * 1000 / 60),
        first=stored.first,
        gpus=members(group, (), groups) if stored.gpus is None else stored.gpus,
        set_ns=set_ns,
        begin_ns=at(stored.begin, set_ns),
        end_ns=at(stored.until, NEVER_NS),
        ramp_ns=round((RAMP_S if stored.ramp_s is None else stored.ramp_s) * 1e9),
        before_mw=None if stored.before_watts is None else round(stored.before_watts * 1000),
    )


def store(path: Path, budgets: Iterable[Budget]) -> None:
    """Put all budgets in the place of those there. Raises StorageError."""
    store_json(path, {budget.group: _stored(budget) for budget in budgets}, "the power budget")


def _stored(budget: Budget) -> StoredBudget:
    return StoredBudget(
        watts=None if budget.targets else budget.limit_mw / 1000,
        follow=budget.follows or None,
        ramp_w_min=budget.ramp_mw_s * 60 / 1000 or None,
        first=budget.first,
        gpus=budget.gpus,
        set=_local_time(budget.set_ns),
        begin=_local_time(budget.begin_ns),
        until=None if budget.end_ns == NEVER_NS else _local_time(budget.end_ns),
        ramp_s=budget.ramp_ns / 1e9,
        before_watts=None if budget.before_mw is None else budget.before_mw / 1000,
    )


def _local_time(t_ns: int) -> datetime:
    return datetime.fromtimestamp(t_ns / 1e9).astimezone()


# ---- changes ---------------------------------------------------------------------------------------------


def with_one(listed: Iterable[Budget], new: Budget) -> tuple[Budget, ...]:
    """Return the budgets with a new one, in place of that of its group. What is over is left out."""
    listed = tuple(budget for budget in listed if not over(budget, new.set_ns))
    before = [budget for budget in in_force(listed, new.set_ns) if budget.group == new.group]
    if before:
        new = replace(new, before_mw=before[0].limit_mw)
    return (*(budget for budget in listed if budget.group != new.group), new)


def without(listed: Iterable[Budget], group: str, now_ns: int) -> tuple[Budget, ...]:
    """Return the budgets with one that ends now; its ramp follows. Raises RefusedError: there is none."""
    listed = tuple(budget for budget in listed if not over(budget, now_ns))
    ending = [budget for budget in listed if budget.group == group]
    if not ending:
        there = ", ".join(budget.group for budget in listed) or "none is set"
        raise RefusedError(
            f"budget {group}: could not be ended: it was not set on this machine. Name one of: {there}."
        )
    others = tuple(budget for budget in listed if budget.group != group)
    if not in_force(ending, now_ns):
        return others
    return (*others, replace(ending[0], end_ns=min(ending[0].end_ns, now_ns)))


def says(budget: Budget, now_ns: int) -> str:
    """Return a budget in one line."""
    until = "it is ended" if budget.end_ns == NEVER_NS else _local(budget.end_ns, now_ns)
    state = "holds" if in_force([budget], now_ns) else "over" if over(budget, now_ns) else "is to come"
    whose = ", ".join(budget.gpus) or "every GPU of the site"
    since = _local(budget.begin_ns, now_ns)
    limit = f"follows {budget.follows}" if budget.targets else f"{budget.limit_mw / 1000:g} W"
    return (
        f"{budget.group}: {limit} for {whose}, from {since} until {until}, ramp"
        f" {budget.ramp_ns / 1e9:g} s: {state}."
    )


def _local(t_ns: int, now_ns: int) -> str:
    at = datetime.fromtimestamp(t_ns // 10**9).astimezone()
    near = abs(t_ns - now_ns) < 12 * 3600 * 10**9
    return at.strftime("%H:%M" if near else "%Y-%m-%d %H:%M")
