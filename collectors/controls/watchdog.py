"""The watchdog: a process beside the collector that restores what the collector changed if that is killed.

    python -m collectors.controls.watchdog DEVICE RUN RECORDS [SET_COMMAND]

Its stdin is a pipe whose other end only the collector has: the kernel closes it however the collector
ends. Until then the watchdog waits and holds nothing, not even the libraries that restoring takes. After a
clean stop there is no record left, and it just ends.

It outlives what ends a collector: it is in a session of its own, and deaf to the signals by which a
terminal or a service manager ends a whole group. What it does after the collector's end is bounded in
time (`restore.PATIENCE_S`). Nothing on its way waits or polls, but it loads modules for 0.1 s of processor
time: on a host with many busy processes that took seconds, so it has real-time priority where it may.
"""

import os
import signal
import sys
from contextlib import suppress

from collectors.real_time import take_real_time_priority

READY = b"ready\n"


def main() -> None:
    """Wait for the end of the collector, then restore. Exit code 1: something of ours is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    take_real_time_priority()
    with suppress(BrokenPipeError):  # the collector has died already: there is more to do, not less
        os.write(1, READY)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    while os.read(0, 1):
        pass
    sys.exit(0 if _clean(sys.argv[3]) or _restore(*sys.argv[1:]) else 1)


def _clean(records: str) -> bool:
    """Return True if there is no record, as after a clean stop. Quick: nothing has to be loaded for it."""
    try:
        with os.scandir(records) as found:
            return not any(entry.name.endswith((".json", ".json.copy")) for entry in found)
    except OSError:
        return False  # not there, or not to be read: what restores knows which


def _restore(device: str, run: str, records: str, set_command: str = "") -> bool:
    # Imported now: until here the watchdog weighs next to nothing.
    from pathlib import Path  # noqa: PLC0415  (see above)

    from collectors.controls.restore import restore_patiently  # noqa: PLC0415  (see above)
    from collectors.devices.registry import open_bus  # noqa: PLC0415  (see above)
    from zeus_stream.errors import ZeusStreamError  # noqa: PLC0415  (see above)

    where = Path(run)
    try:
        return restore_patiently(
            lambda: open_bus(device, where, set_command=set_command),
            Path(records),
            where / "collector.lock",
            "the watchdog of a collector that died",
            _say,
        )
    except ZeusStreamError as wrong:
        _say(str(wrong))
        return False


def _say(sentence: str) -> None:
    try:
        # Not through a buffer: what that could not write is tried again at the exit, whose code it becomes.
        os.write(2, f"watchdog: {sentence}\n".encode())
    except OSError:
        # The reader of the collector's stderr died with it. The record says it to the next collector.
        return


if __name__ == "__main__":
    main()
