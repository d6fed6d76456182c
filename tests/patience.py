"""What lets a test hold on a machine that is busy with others."""

PATIENT = {"ZEUS_STREAM_FLUSH_S": "60"}
"""The end of a script waits until its collector has everything, as long as a busy machine may take."""


def complaints(stderr: str) -> str:
    """Return what a script said, but for a collector that took a second to answer, as a busy one may."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if "takes in nothing: training goes on" not in line)
