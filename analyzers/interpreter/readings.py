"""Readings of GPUs, and what can be measured by them: windows, trials, tries and answers. Pure."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from operator import attrgetter

import numpy as np

from analyzers.batch_size.tracker import FrameMeasured
from analyzers.fleet.fleet import FULL, gpu_row, hangs
from analyzers.fleet.session import Session
from analyzers.interpreter.sessions import FEW, attempt, catch_up_with, drop, measure, needed_ns, users
from analyzers.interpreter.state import SiteState
from analyzers.measurement.phases.phase_tracker import PhaseTracker
from analyzers.measurement.timeline import IDLE_NS, RECENT_NS
from analyzers.power_limit.run import ReadingsCame, Run
from analyzers.results.readings import READING, well_formed
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import GapRow, Row
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.readings import Readings

AHEAD_NS = 1_000_000_000
"""Readings cannot be later than their frame; so much is forgiven."""
LEARN_NS = 1_000_000_000
"""Between two looks at what is known of a counter: a look works out all readings that lie unread."""
LOOK_NS, LOOK_MORE_NS, LOOK_SELDOM_NS = 20_000_000, 200_000, 1_000_000_000
"""Between two looks at the windows of a session: alone on its host, more for each other, and at most."""


def handle(site: SiteState, frame: Frame, body: Readings) -> Result:
    host = frame.host
    if not well_formed(body):
        return _gap(frame, 1, "a frame of them has figures that cannot be")
    rows = np.frombuffer(body.rows, READING)
    if rows.size and rows["t_hi_ns"].max() > frame.t_ns + AHEAD_NS:
        return _gap(frame, len(rows), "they are later than they were logged")
    if site.fleet.full(body.gpus):
        return _gap(frame, len(rows), FULL)
    owned, gaps = site.fleet.owned(host, body.gpus, "readings", site.now_ns)
    found: list[Row] = [*gaps]
    rows = rows.take(np.argsort(rows["gpu"], kind="stable"))
    indices, starts = np.unique(rows["gpu"], return_index=True)
    for index, (start, end) in zip(indices.tolist(), pairwise([*starts.tolist(), len(rows)]), strict=True):
        uuid = body.gpus[index]
        if uuid in owned:
            found += _add(site, frame, uuid, rows[start:end])
    return rows_only(found)


def _add(site: SiteState, frame: Frame, uuid: str, rows: np.ndarray) -> list[Row]:
    host = frame.host
    gpu = site.fleet.follow(host, uuid)
    gpu.timeline.add(rows)
    if gpu.sessions and (clock_mhz := int(rows["clock_mhz"][-1])) > 0:
        gpu.clocks_mhz.append(clock_mhz)
    found: list[Row] = [*hangs(host, uuid, gpu.timeline)]
    if gpu.timeline.crowded:
        gpu.timeline.forget(needed_ns(site, uuid), RECENT_NS if users(site, uuid) else IDLE_NS)
    if gpu.shaped and gpu.shaped.crowded:
        gpu.shaped.forget(needed_ns(site, uuid))
    same_gain = gpu.reported_gain == gpu.timeline.gain
    if not gpu.found or (gpu.reported[0] and same_gain and not gpu.sessions):
        return found  # nothing is learned of a GPU that no run uses, but its period
    if 0 <= frame.t_ns - gpu.learned_ns < LEARN_NS:
        return found
    gpu.learned_ns = frame.t_ns
    learned = gpu.timeline.period_known, gpu.counter_kind, gpu.window_ns
    if learned != gpu.reported or not same_gain:
        gpu.reported, gpu.reported_gain = learned, gpu.timeline.gain
        site.fleet.learn(uuid, gpu)
        found.append(gpu_row(host, gpu, gpu.found))
    return found


def _gap(frame: Frame, count: int, reason: str) -> Result:
    return rows_only([GapRow(frame.host, "readings", frame.t_ns, count, reason)])


# ---- what can be measured by now


def measure_due(site: SiteState, frame: Frame, body: Body, *, hurried: bool) -> Result:
    """Measure what can be measured by now; ``hurried``: without the fit of the energy of single steps."""
    now, host = site.now_ns, frame.host
    pause_ns = frame.t_ns - site.looked_ns.get(host, 0)
    due, result = is_due(site, host, frame.t_ns), NOTHING
    if due:
        site.looked_ns[host] = frame.t_ns
    for session in _to_measure(site, frame, body, pause_ns if due else None):
        result |= _session(site, frame, session, hurried=hurried)
    for run in _searching(site, frame, body, due=due):
        work = partial(run.handle, ReadingsCame(), now)
        result |= attempt(site, frame, "trials", work, session=run.lead)
    look = partial(site.jobs.handle, FrameMeasured(host), now)
    result |= attempt(site, frame, "tries", look)
    if due:
        given = tuple(site.questions.time_out(host, frame.t_ns, 2 * site.settings.timeout_ns))
        result |= Result((), given) if given else NOTHING
    return result


def _searching(site: SiteState, frame: Frame, body: Body, *, due: bool) -> list[Run]:
    """Return the runs whose trials are looked at after a frame: those that wait for one's cost."""
    on_host = site.on[frame.host]
    if len(on_host) > FEW and not due and isinstance(body, Events):
        return []
    if len(on_host) <= FEW and isinstance(body, Events):
        sessions: Iterable[Session] = [on_host[body.session]] if body.session in on_host else ()
    else:
        sessions = on_host.values()
    names = dict.fromkeys(session.started.run for session in sessions)
    runs = [run for name in names if (run := site.runs.get(name)) is not None]
    return [run for run in runs if run.search.waits]


def is_due(site: SiteState, host: str, now_ns: int) -> bool:
    """Return whether it is time to look at all sessions of a host."""
    pause_ns = max(LOOK_NS, len(site.on[host]) * LOOK_MORE_NS)
    return not 0 <= now_ns - site.looked_ns.get(host, 0) < pause_ns


def _to_measure(site: SiteState, frame: Frame, body: Body, pause_ns: int | None) -> list[Session]:
    """Return the sessions whose windows are looked at after a frame of their host.

    The more sessions a host has, the less often each is looked at, and the longest ago first: the work
    for a frame stays the same. ``pause_ns``: since the last look at all of them; None: it is not due.
    """
    on_host = site.on[frame.host]
    if len(on_host) <= FEW:
        if isinstance(body, Events):
            return [on_host[body.session]] if body.session in on_host else []
        return list(on_host.values())
    if pause_ns is None:
        return []
    every_ns = min(len(on_host) * LOOK_NS, LOOK_SELDOM_NS)
    asked = site.questions.sessions(frame.host)
    old = [each for each in on_host.values() if not 0 <= frame.t_ns - each.measured_ns < every_ns]
    if 0 <= pause_ns < every_ns:  # those that began together are measured one after the other
        old = sorted(old, key=attrgetter("measured_ns"))[: 1 + len(on_host) * pause_ns // every_ns]
    chosen = asked.union([each.session for each in old])
    return [each for each in on_host.values() if each.session in chosen]


def _session(site: SiteState, frame: Frame, session: Session, *, hurried: bool) -> Result:
    caught_up = catch_up_with(site, session.session)
    if session.session not in site.sessions:
        return caught_up  # it was set aside
    session.measured_ns = frame.t_ns
    windows, phases = site.windows[session.session], site.phases[session.session]
    work = partial(measure, site, session, frame.t_ns, hurried=hurried)
    result = caught_up | attempt(site, frame, "windows", work, session=session)
    over = session.ended is not None and windows.empty
    if phases.marked:
        look = partial(_phases, site, session, phases, frame.t_ns, ended=over)
        result |= attempt(site, frame, "phases", look)
    if over and session.session in site.sessions:
        drop(site, session)
    return result


def measure_all(site: SiteState) -> Result:
    """Measure what can be measured of all sessions by now, whenever they were looked at."""
    result = NOTHING
    for session in list(site.sessions.values()):
        site.windows[session.session].hasten()
        t_ns = site.now_ns[session.host]
        frame = Frame(log_id="", offset=0, host=session.host, t_ns=t_ns, topic="", body=b"")
        result |= _session(site, frame, session, hurried=False)
    return result


def _phases(site: SiteState, session: Session, phases: PhaseTracker, now_ns: int, *, ended: bool) -> Result:
    meters = {gpu: site.fleet.gpus[gpu].meter for gpu in session.gpus}
    return rows_only(phases.measure(meters, now_ns, ended=ended))
