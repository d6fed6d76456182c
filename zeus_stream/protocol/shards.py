"""The shards of a site: which analyzer of several decides on a job. Pure."""

import zlib


def shard_of(job: str, shards: int) -> int:
    """Return the shard in which all runs of a job are decided."""
    return zlib.crc32(job.encode()) % shards


def owner_of(site: str, shard: int) -> str:
    """Return the owner of a shard's commands, the same for each analyzer that holds it."""
    return f"{site}/shard-{shard}"
