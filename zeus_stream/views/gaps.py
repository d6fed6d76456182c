"""Data that is known to be missing: what it means, and the cure. Pure."""

from zeus_stream.protocol.snapshots import GapNow, HostNow

CURES = {
    "readings": "Give the collector a processor of its own, or read less often with --poll-ms.",
    "collector": "Let systemd start it again (docs/how-to/production.md); its log says why it ended.",
    "events": "Look at the process that is named; its training goes on.",
    "frames": "Keep more in the log of the collector with --log-mb, or do not stop the analyzer for so long.",
    "messages": "Look at the process that is named; it speaks another version, or is broken.",
    "connections": "Look which program opens so many connections.",
    "windows": "End windows that are open.",
    "log": "Make room on the disk of the log.",
    "notes": "Make room on the disk of the log.",
}
"""What to do about data of each kind that is missing."""
SILENT = (
    "its collector does not answer: the power limits found are back in force, trainings go on, and their"
    " events wait. Start it again: zeus-stream collect"
)
"""What it means that a collector is silent, and the cure."""


def cure_of(gap: GapNow) -> str:
    """Return what to do about missing data; empty: not known."""
    return CURES.get(gap.what, "")


def host_trouble(host: HostNow) -> str:
    """Return what is wrong with a host, in a sentence; empty: nothing."""
    if host.state == "connected" and not host.trouble:
        return ""
    if host.trouble:
        return f"{host.host}: {host.trouble}"
    return f"{host.host}: {SILENT}"
