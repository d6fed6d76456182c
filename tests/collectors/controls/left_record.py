"""The traces of a killed collector on disk."""

from contextlib import closing
from pathlib import Path

from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from zeus_stream.clock import boot_id
from zeus_stream.protocol.fields import Control


def leave(
    directory: Path, gpu: str, limits: Limits, control: Control = "power_limit", boot: str | None = None
) -> None:
    """Write its record of a control. ``boot``: the id of an earlier boot."""
    left = RestoreRecord(gpu=gpu, limits=limits, boot_id=boot or boot_id(), time="then", control=control)
    with closing(RestoreRecordFile(directory, gpu)) as file:
        file.write(left)
