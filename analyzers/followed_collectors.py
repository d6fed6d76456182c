"""The collectors that the analyzer follows and commands, and the host that each speaks for."""

from collections import Counter
from functools import partial

from analyzers.archive.store import Store
from analyzers.dispatch.collector_link import Link
from zeus_stream.paths import Places
from zeus_stream.protocol.frames import Frame
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.endpoints import Distant
from zeus_stream.transport.follower import follow


class Collector:
    """A collector that is followed and commanded."""

    def __init__(
        self,
        context: sockets.Context,
        name: str,
        source: Places | Distant,
        archive: Store,
        settings: Settings,
    ) -> None:
        self.name = name
        """As the settings have it."""
        self.bound = source.ticket.host if isinstance(source, Distant) else None
        """The host it may speak for; None: any."""
        self.link = Link(context, source, archive.archive_id, settings.lease_ms, archive.starts, self.bound)
        self.counters: Counter[str] = Counter()
        self.follow = partial(follow, context, source, host=self.bound, counters=self.counters)


class Host:
    """The stream of one host, as the shell knows it."""

    def __init__(self) -> None:
        self.collector: Collector | None = None
        """None: it is not followed (yet)."""
        self.last: Frame | None = None
        """The last frame that was interpreted."""
