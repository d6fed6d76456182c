"""Messages of a host with one GPU and a run: tests replace what they are about."""

from typing import Final

from collectors.device import Description
from zeus_stream.protocol.commands import ReleaseControl, SetControl, Welcome
from zeus_stream.protocol.events import RunStarted
from zeus_stream.protocol.notes import CollectorStarted, ControlLeaseEnded, DeviceFound, RunAdmitted

COLLECTOR_STARTED: Final = CollectorStarted(
    t_ns=0, incarnation="other", version="0", boot_id="boot", wall_ns=0, wall_error_ns=0, observe=False
)
DEVICE_FOUND: Final = DeviceFound(
    t_ns=1, gpu="GPU-1", index=0, name="V100", driver="1", counts_energy=True, min_limit_mw=100_000,
    max_limit_mw=250_000, default_limit_mw=250_000, found_limit_mw=250_000, mig=False,
)  # fmt: skip
RUN_STARTED: Final = RunStarted(
    t_ns=0, job="job", run="run", rank=0, world_size=1, gpus=(), pid=1, boot_id="boot", wall_ns=0,
    wall_error_ns=0,
)  # fmt: skip
RUN_ADMITTED: Final = RunAdmitted(t_ns=0, session="s", run="run", gpus=(), may_command=True, reason="")
SET_CONTROL: Final = SetControl(
    command="c", owner="o", incarnation="i", fence=0, run="r", gpu="GPU-1", control="power_limit",
    value=200_000, lease_ms=1500,
)  # fmt: skip
RELEASE_CONTROL: Final = ReleaseControl(
    command="c", owner="o", incarnation="i", fence=0, gpu="GPU-1", control="power_limit"
)
LEASE_ENDED: Final = ControlLeaseEnded(
    t_ns=0, gpu="GPU-1", control="power_limit", owner="us", cause="other_program", reason="", value=0
)
WELCOME: Final = Welcome(
    host="host", incarnation="incarnation", log_id="log", first_offset=0, next_offset=0, observe=False
)
DESCRIPTION: Final = Description(
    gpu="GPU-1", index=0, name="A100", driver="1", counts_energy=True, min_limit_mw=100_000,
    max_limit_mw=400_000, default_limit_mw=400_000,
)  # fmt: skip
