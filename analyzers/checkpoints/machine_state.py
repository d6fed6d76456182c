"""The state of a site as bytes, and a state that goes on from there. Pure.

An interpreter that starts is made from settings; `restore` then gives its machines the state of an earlier
one. A machine that there is once has a class attribute ``NOT_STATE``: the names of its attributes that stay
as they were made, since they come from settings, files or other tables of the archive.
"""

from collections.abc import Callable, Mapping
from typing import Any

from analyzers.checkpoints import object_graph
from analyzers.interpreter.sessions import catch_up_all
from analyzers.interpreter.state import SiteState
from analyzers.live.live_site import LiveSite
from analyzers.power_limit.selectors import Selector
from zeus_stream.errors import MalformedError

Select = Callable[[str], Selector | None]
"""Returns the selector that is written so."""


def state_of(site: SiteState) -> bytes:
    """Return the state of an interpreter. Raises `object_graph.UnknownObjectError`."""
    site.left |= catch_up_all(site)  # steps that wait are an object each
    jobs = site.jobs
    return _encoded(site, jobs.known.open_jobs(jobs.used_jobs()))


def restore(site: SiteState, state: bytes, select: Select) -> None:
    """Let the state of a new interpreter be an earlier one. Raises MalformedError: do not use it then."""
    open_jobs = _decoded(site, state, {Selector.__name__: select})
    site.jobs.known.go_on(open_jobs)
    site.pending.restart()


def live_state_of(live: LiveSite) -> bytes:
    """Return what screens are shown. Raises `object_graph.UnknownObjectError`."""
    return _encoded(live, None)


def restore_live(live: LiveSite, state: bytes, now_ns: int) -> None:
    """Let a new live state go on from another. Raises MalformedError: it is not to be used then."""
    _decoded(live, state, {})
    live.restart(now_ns)


def parts_of(whole: Any) -> dict[str, Any]:
    """Return the machines that there are once, by path; each has ``NOT_STATE``."""
    parts = {"": whole}
    waiting = [""]
    while waiting:
        path = waiting.pop(0)
        for name, value in object_graph.attributes(parts[path]).items():
            if hasattr(type(value), "NOT_STATE") and all(value is not part for part in parts.values()):
                parts[f"{path}.{name}"] = value
                waiting.append(f"{path}.{name}")
    return parts


def _encoded(whole: Any, more: Any) -> bytes:
    parts = parts_of(whole)
    roots = [
        {name: value for name, value in object_graph.attributes(part).items() if name not in part.NOT_STATE}
        for part in parts.values()
    ]
    outside = {id(part): path for path, part in parts.items()}
    return object_graph.encode([*roots, more], outside, {Selector: lambda selector: selector.text})


def _decoded(whole: Any, state: bytes, special: Mapping[str, Callable[[str], Any]]) -> Any:
    parts = parts_of(whole)
    *roots, more = object_graph.decode(state, parts, special)
    if len(roots) != len(parts):
        raise MalformedError("state: could not be read: it has other parts.")
    for part, root in zip(parts.values(), roots, strict=True):
        for name, value in root.items():
            setattr(part, name, value)
    return more
