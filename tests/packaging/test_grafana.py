"""The dashboard and the alert rules: each expression names metrics and labels that there are."""

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.directories import short_directory
from tests.packaging.alert_tests import FIRED, promtool_tests
from tests.packaging.prometheus import binary, prometheus, promtool
from tests.waiting import until
from tests.zeus_stream.conftest import QUICK, Cli
from tests.zeus_stream.screens.metrics.snapshots import of_analyzer, of_collector
from zeus_stream.screens.metrics.job_metrics import JobMetrics
from zeus_stream.screens.metrics.metrics import Family, gpu_families, service_families, up_family

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "grafana"
ALERTS = ROOT / "packaging" / "prometheus" / "alerts.yml"
WORDS = {
    "sum", "max", "rate", "increase", "by", "count", "ignoring", "on", "unless", "and", "or", "vector",
    "max_over_time", "offset", "state",
}  # fmt: skip
SCRIPT = """
import time, zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu:
    for epoch in zeus_stream.epochs(100_000):
        for _ in zeus_stream.steps(range(50)):
            gpu.run(0.02)
"""


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboard", FOLDER / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alerts() -> list[str]:
    """Return the expressions of the alert rules, each in one line."""
    text = re.sub(
        r">-\n((?: {10,}.*\n)+)", lambda found: " ".join(found[1].split()) + "\n", ALERTS.read_text()
    )
    return re.findall(r"expr: (.*)", text)


def catalogue() -> dict[str, set[str]]:
    """Return the labels of each metric."""
    jobs = JobMetrics(whole=True)
    jobs.take(of_analyzer().runs)
    jobs.add_waste("asr", {"data wait": 1.0})
    families: list[Family] = [
        *gpu_families(of_collector()),
        *service_families(of_collector()),
        *service_families(of_analyzer()),
        *jobs.families(of_analyzer()),
        up_family({"analyzer": True}),
    ]
    return {
        family.name: {name for name, _ in family.samples[0].labels} for family in families if family.samples
    }


def test_the_dashboard_is_what_its_script_writes() -> None:
    written = json.loads((FOLDER / "zeus-stream.json").read_text(encoding="utf-8"))
    assert written == generator().dashboard(), "Write it again: python packaging/grafana/dashboard.py"
    shown = [target["expr"] for panel in written["panels"] for target in panel.get("targets", ())]
    assert shown == generator().expressions()


@pytest.mark.parametrize("expression", [*generator().expressions(), *alerts()])
def test_every_metric_and_label_of_an_expression_exists(expression: str) -> None:
    known = catalogue()
    bare = re.sub(r"\[[^\]]*\]", "", expression)
    assert set(re.findall(r"\$(\w+)", bare)) <= {name for name, _ in generator().VARIABLES}
    bare = re.sub(r'"[^"]*"', '""', bare)
    words = set(re.findall(r"[a-z_]{2,}[a-z0-9_]*", bare))
    named = {word for word in words if word.startswith("zeus_stream_")}
    assert named
    assert named <= set(known)
    labels = set().union(*(known[name] for name in named))
    assert words - named - WORDS <= labels
    for name, matched in re.findall(r"(zeus_stream_\w+)\{([^}]*)\}", bare):
        assert set(re.findall(r"(\w+)=", matched)) <= known[name]


def test_a_figure_in_an_alert_has_the_digits_that_people_read() -> None:
    assert not re.findall(r"\$value }}", ALERTS.read_text())


def test_each_alert_fires_once_under_its_own_series_and_none_in_a_training(tmp_path: Path) -> None:
    """Prometheus's own engine plays them, by promtool."""
    if (program := promtool()) is None:
        pytest.skip("promtool is missing: `make test-metrics` unpacks Debian's package")
    assert set(FIRED) == set(re.findall(r"alert: (\w+)", ALERTS.read_text()))
    tests = tmp_path / "tests.yml"
    tests.write_text(json.dumps(promtool_tests(str(ALERTS))), encoding="utf-8")
    done = subprocess.run([program, "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def pipeline(directory: Path) -> Iterator[Cli]:
    """Run collector, analyzer and a training on a simulated GPU."""
    zeus = Cli(directory)
    script = directory / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    running = [zeus.start("collect", "--device", "simulated:v100x1"), zeus.start("analyze", *QUICK)]
    try:
        until(lambda: (directory / "publish").exists() and (directory / "query").exists())
        training = [sys.executable, str(script)]
        running.append(
            subprocess.Popen(
                training, env=zeus.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        yield zeus
    finally:
        for each in reversed(running):
            each.terminate()
        for each in running:
            each.communicate(timeout=60)


def wait_for_steps(zeus: Cli, wanted: str) -> str:
    """Return the metrics once a line of them begins so."""
    deadline = time.monotonic() + 120
    while True:
        shown = zeus("metrics", "--of", "all", "--once").stdout
        if any(line.startswith(wanted) for line in shown.splitlines()):
            return shown
        assert time.monotonic() < deadline, shown


@pytest.mark.sweep
def test_every_expression_is_answered_by_a_real_prometheus() -> None:
    """Alerts that must not fire are asked for without their threshold."""
    program = binary()
    with short_directory() as directory, pipeline(directory) as zeus:
        shown = wait_for_steps(zeus, "zeus_stream_run_step_energy_joules{")
        assert 'zeus_stream_up{process="collector"} 1' in shown
        if program is None:
            pytest.skip(
                "Prometheus is missing: `make test-metrics` unpacks Debian's package. The text is read."
            )
        server = zeus.start("metrics", "--of", "all", "--listen", "127.0.0.1:0")
        try:
            assert server.stderr is not None
            target = server.stderr.readline().split("http://")[1].split("/")[0]
            with prometheus(program, directory, target, ALERTS) as found:
                asked = [each.replace("$__rate_interval", "1m") for each in generator().expressions()]
                asked = [re.sub(r"\$(host|job|run)", ".*", each) for each in asked]
                asked += [re.sub(r" (==|>|<) (0|10|100|0\.05)(?= |$)", "", each) for each in alerts()]
                # No run has ended, nothing is lost, an open run may have a limit, and there may be no RAPL.
                nothing = ("waste", "gap_items", "unless", "host_part")
                empty = {each for each in asked if any(word in each for word in nothing)}
                left = [each for each in asked if each not in empty]
                deadline = time.monotonic() + 60
                while left and time.monotonic() < deadline:
                    left = [each for each in left if not found.result(each)]
                    time.sleep(0.5)
                assert left == []
                for each in empty:
                    found.result(each)  # it is an expression, though it has no answer
                rules = found.rules()
                assert {rule["health"] for rule in rules} == {"ok"}
                assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
        finally:
            server.terminate()
            server.communicate(timeout=60)
