"""A collector with meters, an analyzer and SQL: a meter that takes seconds holds up no GPU."""

import sys

from tests.waiting import until
from tests.zeus_stream.conftest import SIMULATED, Cli

SLOW_S = 1.5


def test_meters_are_devices_of_the_host_and_a_slow_one_holds_up_no_gpu(zeus: Cli) -> None:
    wall = zeus.directory / "wall"
    wall.write_text("800\n", encoding="ascii")
    slow = zeus.directory / "slow.py"
    slow.write_text(f"import time; time.sleep({SLOW_S}); print(1200)", encoding="utf-8")
    named = f'["wall=file:{wall} W 1% 0.2s", "site=command:{sys.executable} {slow} W 0.1s"]'
    settings = zeus.directory / "zeus-stream.toml"
    settings.write_text(f'meters = {named}\nhost = "h"\n', encoding="utf-8")

    with zeus.serving("collect", "--device", SIMULATED), zeus.serving("analyze"):
        until(lambda: len(zeus.ask("SELECT DISTINCT t_hi_ns FROM readings WHERE gpu = 'SITE-h-site'")) >= 3)
        meters = zeus.ask("SELECT gpu, name, sensor_gain_error FROM gpus WHERE of_host(gpu) ORDER BY gpu")
        powers = zeus.ask("SELECT DISTINCT gpu, power_w FROM samples WHERE of_host(gpu) ORDER BY gpu")
        # A slow read says how little is known of when its figure was true.
        (site,) = zeus.ask(
            "SELECT min(t_hi_ns - t_lo_ns) / 1e9 AS within_s FROM readings WHERE gpu = 'SITE-h-site'"
        )
        (gpu,) = zeus.ask(
            "SELECT max(between_ns) / 1e9 AS longest_s FROM (SELECT t_hi_ns - lag(t_hi_ns) OVER (ORDER BY"
            " t_hi_ns) AS between_ns FROM readings WHERE gpu LIKE 'GPU-%')"
        )
        until(lambda: zeus.ask("SELECT 1 FROM seconds WHERE gpu = 'WALL-h-wall' AND energy_j > 0"))
        wall.unlink()
        until(lambda: zeus.ask("SELECT gone FROM gpus WHERE gpu = 'WALL-h-wall'")[0]["gone"])
        wall.write_text("900\n", encoding="ascii")
        until(lambda: zeus.ask("SELECT 1 FROM samples WHERE gpu = 'WALL-h-wall' AND power_w = 900"))
    assert meters == [
        {"gpu": "SITE-h-site", "name": "site, by command", "sensor_gain_error": None},
        {"gpu": "WALL-h-wall", "name": "wall, by file", "sensor_gain_error": 0.01},
    ]
    assert powers == [{"gpu": "SITE-h-site", "power_w": 1200.0}, {"gpu": "WALL-h-wall", "power_w": 800.0}]
    assert site["within_s"] >= SLOW_S
    assert gpu["longest_s"] < SLOW_S, "no pause as long as a read of the slow meter"
