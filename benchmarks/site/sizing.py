"""Cores, bytes and euros of a site of N GPUs: a table from measured unit costs.

    python -m benchmarks.site.sizing                    1,000, 10,000 and 100,000 GPUs
    python -m benchmarks.site.sizing --gpus 4000 --core-eur 0.03

Nothing is measured here. Each unit cost names the command that measured it, and its conditions; change it by
its flag to that of your machines. Where no command of ours measures it, the table says who did.
"""

import argparse
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

DAY_S = 86_400
GB = 1e9


class Units(Struct, frozen=True, kw_only=True):
    """Unit costs, each measured on one core of a shared machine unless its comment says otherwise."""

    readings_per_gpu_s: float = 10.0  # counters that change every 100 ms
    gpus_per_host: int = 8
    archiver_readings_per_core_s: float = 130_000.0  # benchmarks.site.lake, decode to commit, one run
    analyzer_readings_per_core_s: float = 150_000.0  # benchmarks.load: 0.3 M/s by one on two cores
    analyzed_share: float = 0.5  # of GPUs that have a run; an assumption
    relay_messages_per_core_s: float = 8_300.0  # prototype of the design, one in flight a host
    broker_messages_per_core_s: float = 9_500.0  # prototype of the design, three replicas on two cores
    messages_per_host_s: float = 2.0  # LINGER_S of the relay is 0.5 s
    broker_bytes_per_reading: float = 22.0  # python -m benchmarks.site.lake
    lake_bytes_per_reading: float = 14.2  # python -m benchmarks.site.lake --hosts 4 --seconds 1200, merged
    seconds_bytes: float = 15.0  # prototype of the design, a row of ``seconds``
    minutes_bytes: float = 15.9  # prototype of the design, a row of ``minutes``
    replicas: int = 3
    broker_days: float = 1.0  # STREAM_HOURS of the relay
    keep_readings_days: float = 7.0
    keep_seconds_days: float = 14.0
    keep_minutes_days: float = 400.0
    load: float = 0.5  # of a core that is planned for: the rest is for catching up
    core_eur: float = 0.04  # an hour of a core; an assumption
    gb_month_eur: float = 0.02  # object store; an assumption


def sizes(gpus: int, units: Units) -> list[tuple[str, str]]:
    """Return what a site takes, as rows of a name and a value with its unit."""
    hosts = ceil(gpus / units.gpus_per_host)
    readings_s = gpus * units.readings_per_gpu_s
    messages_s = hosts * units.messages_per_host_s
    archivers = readings_s / units.archiver_readings_per_core_s / units.load
    analyzers = readings_s * units.analyzed_share / units.analyzer_readings_per_core_s / units.load
    brokers = messages_s / units.broker_messages_per_core_s / units.load * units.replicas
    stored = (
        readings_s * DAY_S * units.keep_readings_days * units.lake_bytes_per_reading
        + gpus * DAY_S * units.keep_seconds_days * units.seconds_bytes
        + gpus * DAY_S / 60 * units.keep_minutes_days * units.minutes_bytes
    )
    cores = sum(max(ceil(each), 2) for each in (archivers, analyzers, brokers)) + 4
    streams = readings_s * DAY_S * units.broker_days * units.broker_bytes_per_reading * units.replicas
    return [
        ("hosts", f"{hosts:,}"),
        ("readings a second", f"{readings_s:,.0f}"),
        (
            "relay, share of a core on each host",
            f"{units.messages_per_host_s / units.relay_messages_per_core_s:.2%}",
        ),
        ("messages a second at the broker", f"{messages_s:,.0f}"),
        ("bytes a second into the broker", f"{readings_s * units.broker_bytes_per_reading / 1e6:,.1f} MB"),
        ("broker, cores of all servers", f"{max(ceil(brokers), 2)}"),
        ("broker, disk of all servers", f"{streams / GB:,.0f} GB"),
        ("archivers, cores", f"{max(ceil(archivers), 2)}"),
        ("analyzers, cores", f"{max(ceil(analyzers), 2)}"),
        ("PostgreSQL and its standby, cores", "4"),
        ("lake at the default ages", f"{stored / GB:,.0f} GB"),
        ("cores", f"{cores}"),
        ("money a month", f"{cores * units.core_eur * 730 + stored / GB * units.gb_month_eur:,.0f} EUR"),
        (
            "money a GPU and month",
            f"{(cores * units.core_eur * 730 + stored / GB * units.gb_month_eur) / gpus:,.3f} EUR",
        ),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    defaults = Units()
    for name in Units.__struct_fields__:
        value = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = parser.parse_args()
    units = replace(defaults, **{name: getattr(options, name) for name in Units.__struct_fields__})
    tables = [sizes(gpus, units) for gpus in options.gpus]
    print("| GPUs | " + " | ".join(f"{gpus:,}" for gpus in options.gpus) + " |")
    print("|---|" + "---|" * len(tables))
    for rows in zip(*tables, strict=True):
        print(f"| {rows[0][0]} | " + " | ".join(value for _, value in rows) + " |")


if __name__ == "__main__":
    main()
