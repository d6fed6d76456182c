"""Snapshots with known figures."""

from tests.zeus_stream.screens.live_snapshots import a_gpu, a_run, a_search
from zeus_stream.protocol.snapshots import GapNow, GpuNow, HostNow, PartNow, RunNow, Snapshot

GPU = a_gpu(
    0, "alpha", gpu="GPU-a", model="Model X", driver="1.0", energy_mj=12_345_678, power_mw=162_500,
    most_mw=300_000, run="run-1",
)  # fmt: skip
SEARCH = a_search(
    phase="chosen", trial=None, trials_planned=None, steps_done=None, steps_wanted=None, best_mw=175_000,
    saved_j=412.0, saved_percent=17.4, time_added_percent=2.0, reason="least cost",
    trials=(),
)  # fmt: skip
RUN = a_run(
    "run-1", job="asr", ranks=1, hosts=("alpha",), gpus=("GPU-a",), epoch=1, step=100, step_j=4.5,
    step_ms=25.0, watts=162.5, energy_j=1000.0, search=SEARCH, forecast=None,
)  # fmt: skip
HOST = HostNow(host="alpha", state="connected", trouble="")
GAP = GapNow(host="alpha", what="events", count=3, reason="the buffer was full")
PART = PartNow(part="CPU-alpha-package-0", host="alpha", energy_mj=5_000, power_mw=20_000, age_ms=40)
METER = PartNow(part="WALL-alpha-wall", host="alpha", energy_mj=None, power_mw=400_000, age_ms=40)


def of_collector(*gpus: GpuNow) -> Snapshot:
    return Snapshot(
        process="collector",
        version="0.1.0",
        wall_ns=0,
        hosts=(HOST,),
        counters=(("commands applied", 7), ("frames", 9)),
        gpus=gpus or (GPU,),
        parts=(PART, METER),
        gaps=(GAP,),
    )


def of_analyzer(*runs: RunNow) -> Snapshot:
    return Snapshot(
        process="analyzer",
        version="0.1.0",
        wall_ns=0,
        hosts=(HOST,),
        lag_ms=120,
        runs=runs or (RUN,),
        gaps=(GAP,),
    )
