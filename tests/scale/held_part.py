"""One part of a lake, as a test writes it."""

from collections.abc import Sequence
from contextlib import ExitStack

from analyzers.archive.store import Received
from analyzers.lake.lake_archive import LakeArchive, frames_of
from analyzers.leases.site_leases import ROWS, OutboxBatch, SiteLease, SiteLeases
from tests.analyzers.archives import HOST
from zeus_stream.broker.batches import part_of
from zeus_stream.settings import Settings

SETTINGS = Settings(memory_mb=256)
SITE, PART = "site", frames_of(part_of(HOST))
TTL_S = 10.0


class HeldPart:
    """A lake, with the lease of one part."""

    def __init__(self, lake: LakeArchive, leases: SiteLeases, name: str) -> None:
        self.lake, self.leases, self.name = lake, leases, name

    @property
    def held(self) -> SiteLease:
        return self.lake.held[self.name]

    def put_stream(self, received: Sequence[Received], until: int) -> None:
        self.lake.put_stream(received, {self.name: until})

    def put_batches(self, batches: Sequence[OutboxBatch]) -> None:
        self.lake.put_stream([], {ROWS: self.held.next + 1}, batches)

    def waiting(self) -> list[OutboxBatch]:
        return self.leases.outbox(16 << 20)

    def renew(self) -> bool:
        return bool(self.leases.renew({self.name: self.held.epoch}, TTL_S))

    def close(self) -> None:
        self.lake.close()
        self.leases.close()


def take(dsn: str, holder: str, part: str = PART) -> HeldPart:
    """Take a part that is free, as a process with this name."""
    leases = SiteLeases(dsn, SITE, holder)
    with ExitStack() as on_failure:
        on_failure.callback(leases.close)
        taken = leases.take([part], TTL_S)
        assert taken
        lake = LakeArchive(dsn, SETTINGS, leases)
        on_failure.pop_all()
    lake.hold(taken)
    return HeldPart(lake, leases, part)
