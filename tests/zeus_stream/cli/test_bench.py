"""The command ``bench``, as a person and as a build use it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.zeus_stream.conftest import SIMULATED, Cli
from zeus_stream.bench.energy_bench import BenchVariant
from zeus_stream.cli.bench.bench_command import load_functions
from zeus_stream.cli.bench.bench_report import BenchSession, annotation, comparable_sessions, make_report
from zeus_stream.errors import SettingsError

KERNELS = """
from zeus_stream import simulated

gpu = simulated.attach("imagenet")

def light():
    gpu.run(0.02)

def heavy():
    gpu.run(0.06)

def wrong():
    [][0]
"""
QUICK = (
    *("--device", SIMULATED, "--rounds", "6", "--seconds", "0.3", "--warmup-s", "1", "--cool-down-s", "1"),
)


@pytest.fixture
def kernels(zeus: Cli) -> Cli:
    (zeus.directory / "kernels.py").write_text(KERNELS, encoding="utf-8")
    return zeus


def test_a_proven_regression_fails_the_build_and_the_archive_keeps_all_sessions(kernels: Cli) -> None:
    command = ("bench", "kernels:light", "kernels:heavy", *QUICK, "--fail-above", "5%", "--json")
    done = kernels(*command, GITHUB_ACTIONS="true")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    light, heavy = report["functions"]
    assert light["against_first"] is None
    assert heavy["against_first"]["proven_percent"] > 100
    assert heavy["energy_j"] > 2 * light["energy_j"]
    assert light["energy_p2_5_j"] <= light["energy_j"] <= light["energy_p97_5_j"]
    assert light["calls"] > 1
    (sentence,) = report["regressions"]
    assert f"::error title=zeus-stream bench::{sentence.replace('%', '%25')}" in done.stderr

    with kernels.serving("collect", "--device", SIMULATED), kernels.serving("analyze", "--select", "none"):
        for session in (2, 3, 4):
            last = kernels("bench", "kernels:light", *QUICK[2:], "--fail-above", "50%")
            assert last.returncode == 0, (session, last.stderr)
    assert "against 3 earlier sessions" in last.stdout
    assert "no regression above 50 % is proven" in last.stdout


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("kernels", "it has no MODULE:FUNCTION"),
        ("missing:light", "there is no module missing"),
        ("kernels:absent", "Name a function of kernels"),
        ("kernels:number", "it cannot be called"),
    ],
)
def test_a_wrong_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, sentence: str
) -> None:
    (tmp_path / "kernels.py").write_text("number = 3", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    with pytest.raises(SettingsError, match=sentence):
        load_functions([spec])


def test_a_wrong_function_or_percentage_ends_the_command(kernels: Cli) -> None:
    absent = kernels("bench", "kernels:absent", *QUICK)
    assert absent.returncode == 1
    assert absent.stderr.endswith("Name a function of kernels.\n")
    assert "Traceback" not in absent.stderr
    wrong = kernels("bench", "kernels:wrong", *QUICK[:4], "--cool-down-s", "0")
    assert wrong.returncode == 1
    _, file, *_, error, sentence = wrong.stderr.partition("Traceback")[2].splitlines()
    assert file.endswith('kernels.py", line 13, in wrong')
    assert error == "IndexError: list index out of range"
    assert sentence == "zeus-stream: bench: could not measure: see the error above. Correct the function."
    assert "'much' is no percentage" in kernels.refused("bench", "x:y", "--fail-above", "much").stderr


SENTENCE = "a: +7 % [5 to 9]'\n"


@pytest.mark.parametrize(
    ("environ", "failed", "line"),
    [
        ({"GITHUB_ACTIONS": "true"}, True, "::error title=zeus-stream bench::a: +7 %25 [5 to 9]'%0A"),
        ({"GITHUB_ACTIONS": "true"}, False, "::notice title=zeus-stream bench::a: +7 %25 [5 to 9]'%0A"),
        ({"TF_BUILD": "True"}, True, "##vso[task.logissue type=error]a: +7 %25 [5 to 9]'%0A"),
        ({"TF_BUILD": "True"}, False, None),
        (
            {"TEAMCITY_VERSION": "2026.1"}, True,
            "##teamcity[buildProblem description='a: +7 % |[5 to 9|]|'|n']",
        ),
        ({}, True, None),
    ],
)  # fmt: skip
def test_annotations_are_in_the_form_of_the_service(
    environ: dict[str, str], *, failed: bool, line: str | None
) -> None:
    assert annotation(environ, SENTENCE, failed=failed) == line


def session(run: str, energy_j: float, **other: Any) -> BenchSession:
    usual = {"began_at": run, "repeats": 6, "gpus": "GPU-1", "power_limit_w": 250.0}
    return BenchSession(run=run, energy_j=energy_j, **{**usual, **other})


def test_a_regression_against_history_needs_the_same_gpu_and_limit_and_enough_sessions() -> None:
    variant = BenchVariant(name="f", calls=1, energies_j=(2.0, 2.01) * 3, durations_s=(None,) * 6)
    earlier = [session(str(number), 1 + number / 1000) for number in range(4)]
    latest = session("9", 2.0)
    other = [session("7", 5.0, gpus="GPU-2"), session("8", 5.0, power_limit_w=100.0)]
    assert comparable_sessions([*earlier, *other, latest], latest) == earlier
    report = make_report("9", [variant], {"f": [*earlier, *other, latest]}, 5)
    assert len(report.regressions) == 1
    assert "against 4 earlier sessions" in report.regressions[0]
    assert make_report("9", [variant], {"f": [*earlier[:2], latest]}, 5).regressions == ()
    assert make_report("9", [variant], {"f": [*earlier, latest]}, None).regressions == ()
