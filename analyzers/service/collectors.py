"""The collectors that the analyzer follows and commands, and the host that each speaks for."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

import anyio
from msgspec import Struct

from analyzers.archive.store import Store
from analyzers.dispatch.collector_link import Commander, Link
from analyzers.interpreter.interpreter import LinkSeen
from zeus_stream.clock import to_next_s
from zeus_stream.protocol.fields import MOST_WORDS
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.protocol.queries import StatusRows
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.channel import FollowedSource
from zeus_stream.transport.endpoints import Distant
from zeus_stream.transport.follower import follow

_log = logging.getLogger(__name__)
LOOK_S = 2.0
"""Between two looks at whether a collector lets us in."""


class Collector:
    """A collector that is followed and commanded."""

    def __init__(
        self,
        context: sockets.Context,
        name: str,
        source: FollowedSource,
        archive: Store,
        settings: Settings,
        *,
        host: str | None = None,
        commander: Commander | None = None,
    ) -> None:
        """Prepare to follow and command it. ``host``: it may speak for; None: any, or that of its key."""
        self.name = name
        self.bound = source.ticket.host if isinstance(source, Distant) else host
        """The host it may speak for; None: any."""
        commander = commander or Commander(archive.archive_id, archive.starts)
        self.link = Link(context, source, commander, settings.lease_ms, self.bound)
        self.counters: Counter[str] = Counter()
        self._follow = partial(follow, context, source, host=self.bound, counters=self.counters)

    def follow(
        self, log_id: str | None, next_offset: int | None, *, pause_s: Callable[[], float]
    ) -> AsyncIterator[list[Frame] | Break]:
        """Yield the frames of its log from an offset on; see `zeus_stream.transport.follower.follow`."""
        return self._follow(log_id, next_offset, pause_s=pause_s)

    def status_rows(self, hosts: Mapping[str, tuple[Frame, int]]) -> StatusRows:
        """Return its rows; ``hosts``: last frame interpreted, and commands that wait."""
        section, link = f"collector {self.name}"[:MOST_WORDS], self.link
        rows = [
            (section, "connected", "yes" if link.connected else "no"),
            (section, "trouble", link.trouble or "none"),
            (section, "lease", f"{link.lease_ms} ms"),
        ]
        for host, (last, waiting) in hosts.items():
            behind = link.behind(last)
            rows += [
                (section, "host", host),
                (section, "last frame", f"{last.offset} of log {last.log_id}"),
                (section, "behind", "not known" if behind is None else f"{behind} frames"),
                (section, "commands waiting", str(waiting)),
            ]
        return [
            *rows,
            (section, "commands dropped", str(link.dropped)),
            (section, "messages not understood", str(link.malformed)),
            *((section, counter, str(count)) for counter, count in sorted(self.counters.items())),
        ]


class Host(Struct):
    """The stream of one host, as the shell knows it."""

    collector: Collector | None = None
    """None: it is not followed (yet)."""
    last: Frame | None = None
    """The last frame that was interpreted."""


def links_seen(hosts: Mapping[str, Host], last: Mapping[str, Frame]) -> Iterator[LinkSeen]:
    """Yield the state of all links. ``last``: frames that were interpreted by now, by host."""
    for name, host in list(hosts.items()):
        frame = last.get(name, host.last)
        if host.collector is not None and frame is not None:
            link = host.collector.link
            yield LinkSeen(name, link.connected, link.behind(frame))


async def complain(link: Link) -> None:
    """Log why a collector does not let us in, each time it is for another reason. Until cancelled."""
    logged: str | None = None
    while True:
        await anyio.sleep(to_next_s(LOOK_S))
        if (trouble := link.trouble) not in (None, logged):
            _log.warning("%s", trouble)
        logged = trouble
