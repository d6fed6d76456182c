"""The state of an interpreter as bytes, and an interpreter that goes on from there. Pure.

An interpreter that starts is made from settings; `restore` then gives its machines the state of an earlier
one. What comes from settings, files or other tables of the archive stays as it was made: `KEPT` names it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from analyzers.checkpoints import object_graph
from analyzers.interpreter.interpreter import Interpreter
from analyzers.live.live_site import LiveSite
from analyzers.power_limit.selectors import Selector
from zeus_stream.errors import MalformedError

Select = Callable[[str], Selector | None]
"""Returns the selector that is written so."""

KEPT: Mapping[str, tuple[str, ...]] = {
    "": (),
    "site": ("settings", "began_under", "shared_jobs", "earlier_uses", "run_owners", "session_hosts"),
    "site.fleet": ("gains",),
    "site.pending": ("_at_once",),
    "site.profiles": ("recalled", "forgotten_wall_ns", "_of"),
    "site.questions": ("_asks",),
    "site.jobs": ("_policy", "_name", "_timeout_ns", "_asks"),
    "site.jobs.known": ("_jobs", "_owners", "_shared", "_recorded", "_orphans"),
    "site.enforcer": ("_settings",),
    "site.enforcer._shares": ("_settings",),
    "site.pipelines": ("_settings",),
}
"""Parts of an interpreter that there are once, and their attributes that are no state of its machines.

Profiles and jobs are tables of the archive; of jobs of open runs the state is written apart. Scripts ask
again what had no answer.
"""
LIVE_KEPT: Mapping[str, tuple[str, ...]] = {"": (), "_runs": ("_energy_mj",)}
"""The same of the live state."""


def state_of(interpreter: Interpreter) -> bytes:
    """Return the state of an interpreter. Raises `object_graph.UnknownObjectError`."""
    interpreter.settle()  # steps that wait are an object each
    jobs = interpreter.site.jobs
    return _encoded(interpreter, KEPT, jobs.known.open_jobs(jobs.used_jobs()))


def restore(interpreter: Interpreter, state: bytes, select: Select) -> None:
    """Let an interpreter that has just been made go on from a state. Raises MalformedError.

    Args:
        interpreter: after an error it is not to be used.
        state: of `state_of`.
        select: finds the selectors of runs that are open.
    """
    open_jobs = _decoded(interpreter, KEPT, state, {Selector.__name__: select})
    interpreter.site.jobs.known.go_on(open_jobs)
    interpreter.site.pending.restart()


def live_state_of(live: LiveSite) -> bytes:
    """Return what screens are shown. Raises `object_graph.UnknownObjectError`."""
    return _encoded(live, LIVE_KEPT, None)


def restore_live(live: LiveSite, state: bytes, now_ns: int) -> None:
    """Let a live state that is new go on from another.

    Args:
        live: after an error it is not to be used.
        state: of `live_state_of`.
        now_ns: on the clock of this process.

    Raises:
        MalformedError: its classes have changed, or it is damaged.
    """
    _decoded(live, LIVE_KEPT, state, {})
    live.restart(now_ns)


def _part(whole: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        whole = getattr(whole, name)
    return whole


def _encoded(whole: Any, kept: Mapping[str, tuple[str, ...]], more: Any) -> bytes:
    parts = {path: _part(whole, path) for path in kept}
    outside = {id(part): path for path, part in parts.items()}
    roots = [
        {name: value for name, value in object_graph.attributes(part).items() if name not in kept[path]}
        for path, part in parts.items()
    ]
    return object_graph.encode([*roots, more], outside, {Selector: lambda selector: selector.text})


def _decoded(
    whole: Any, kept: Mapping[str, tuple[str, ...]], state: bytes, special: Mapping[str, Callable[[str], Any]]
) -> Any:
    parts = {path: _part(whole, path) for path in kept}
    *roots, more = object_graph.decode(state, parts, special)
    if len(roots) != len(parts):
        raise MalformedError("state: could not be read: it has other parts.")
    for part, root in zip(parts.values(), roots, strict=True):
        for name, value in root.items():
            setattr(part, name, value)
    return more
