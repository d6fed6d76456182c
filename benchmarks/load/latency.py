"""Measure the time from the step that decides a change of limit to the limit on the device.

    step begins -> publisher's look (5 to 20 ms) -> collector's log -> analyzer -> collector -> device

A simulated GPU, a limit for every watt, two steps each: every second step asks for another limit.

python -m benchmarks.load.latency
"""

import subprocess
import sys

from benchmarks.harness import environment, process, sql, table
from tests.directories import short_directory

SETTINGS = {
    "ZEUS_STREAM_SEARCH": "exhaustive",
    "ZEUS_STREAM_STRIDE_W": "1",
    "ZEUS_STREAM_WARMUP_STEPS": "1",
    "ZEUS_STREAM_PROFILE_STEPS": "1",
    "ZEUS_STREAM_SETTLE_MS": "0",
    "ZEUS_STREAM_REFRESHES": "0",
}
TRAINING = """
import zeus_stream
from zeus_stream import simulated
accelerator = simulated.attach("imagenet")
for _ in zeus_stream.steps(range(1000)):
    accelerator.run(0.015)
"""
LATENCY = """
with triggered as (  -- the command and the earliest step of the batch that caused it
    select any_value(outcome_ns) - min(events.t_ns) as ns
    from commands
    join frames on frames.t_ns = asked_ns
    join events on events.log_id = frames.log_id and events."offset" = frames."offset"
    where outcome = 'applied' and limit_w is not null and events.kind = 'step_boundary'
    group by command
)
select count(*), quantile_cont(ns / 1e6, 0.5), quantile_cont(ns / 1e6, 0.99), max(ns / 1e6) from triggered
"""


def main() -> None:
    with (
        short_directory() as where,
        process(where, "collect", "--device", "simulated:v100x1", ready="publish"),
        process(where, "analyze", ready="query", environ=SETTINGS),
    ):
        subprocess.run([sys.executable, "-c", TRAINING], env=environment(where), check=True)
        [(commands, p50, p99, worst)] = sql(where, LATENCY)
    table(
        "Step begin to limit read back from the device",
        "commands | p50 | p99 | worst | goal (p99)",
        [[commands, f"{p50:.0f} ms", f"{p99:.0f} ms", f"{worst:.0f} ms", "60 ms"]],
    )


if __name__ == "__main__":
    main()
