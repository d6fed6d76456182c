"""What lets a test hold on a machine that is busy with others."""

PATIENT = {"ZEUS_STREAM_FLUSH_S": "60"}
"""The end of a script waits until its collector has everything, as long as a busy machine may take."""


def complaints(stderr: str) -> str:
    """Return what a script or a command said, but for what it says on a busy machine: what it waits for."""
    lines = stderr.splitlines(keepends=True)
    busy = ("takes in nothing: training goes on", "zeus-stream: waiting for ")
    return "".join(line for line in lines if not any(words in line for words in busy))
