"""The query socket of an analyzer that shares a site: its status. Each shard answers SQL at its own."""

from collections.abc import Callable
from typing import cast

from analyzers.shards.shard import SharedSite
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import AskResults, AskStatus, ForgetJob, No, Query, Reply, Status
from zeus_stream.protocol.snapshots import AskNow
from zeus_stream.transport import sockets

Asked = AskStatus | AskNow | AskResults | Query | ForgetJob


async def serve_status(site: SharedSite, status: Callable[[], list[tuple[str, str, str]]]) -> None:
    """Answer the query socket until cancelled."""
    channel = sockets.listen(site.context, site.where.query, group=site.settings.group)
    try:
        while True:
            for message in await channel.receive():
                if len(message.parts) == 2:
                    correlation, payload = message.parts
                    channel.send(message.sender, correlation, codec.encode(_reply(payload, site, status)))
    finally:
        channel.close()


def _reply(payload: bytes, site: SharedSite, status: Callable[[], list[tuple[str, str, str]]]) -> Reply:
    try:
        request = cast("Asked", codec.decode(payload, AskStatus, AskNow, AskResults, Query, ForgetJob))
    except MalformedError as wrong:
        return No(str(wrong)[:2000])
    if isinstance(request, AskStatus):
        return Status(tuple(status()))
    return No(
        "analyze: could not answer: this analyzer has an archive for each shard. Ask one with --dir"
        f" {site.where.run}/shard-NUMBER, or all with `zeus-stream lake sql`."
    )
