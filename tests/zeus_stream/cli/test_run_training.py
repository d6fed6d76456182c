import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from collectors.devices.simulated import SimulatedBus
from tests.environment import ROOT
from tests.patience import complaints
from tests.waiting import until
from tests.zeus_stream.conftest import QUICK, SIMULATED, Cli, said
from zeus_stream.cli.run_training import how_to_ask
from zeus_stream.cli.running.child_services import ServicesOfCommand
from zeus_stream.cli.running.run_summary import so_far
from zeus_stream.cli.running.signals import Signals
from zeus_stream.paths import Places, holder
from zeus_stream.settings import Settings

COUNTS_SIGNALS = """
import pathlib, signal, sys, time
seen, over = [], []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
pathlib.Path(sys.argv[1]).touch()
while not over:
    time.sleep(0.01)
    if seen:
        pathlib.Path(sys.argv[2]).touch()
print(len(seen))
"""


def test_one_sigint_to_the_process_group_reaches_the_script_once(zeus: Cli) -> None:
    ready, interrupted = zeus.directory / "ready", zeus.directory / "interrupted"
    command = (sys.executable, "-c", COUNTS_SIGNALS, str(ready), str(interrupted))
    with subprocess.Popen(
        [sys.executable, "-m", "zeus_stream", "run", "--device", SIMULATED, "--", *command],
        env=zeus.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0,
    ) as ours:  # fmt: skip
        until(lambda: ready.exists() or ours.poll() is not None)
        os.killpg(ours.pid, signal.SIGINT)
        until(lambda: interrupted.exists() or ours.poll() is not None)
        ours.send_signal(signal.SIGTERM)  # after SIGINT: signals of this process are handled in turn
        out, _ = ours.communicate(timeout=300)
    assert out == "1\n"


MANY_SIGNALS = """
import os, signal, subprocess, sys, threading, time
from zeus_stream.cli.running.signals import Signals
ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); signal.pause()"
def send():
    for more in range(60):
        os.killpg(0, signal.SIGINT)
        time.sleep(0.02 + more / 10_000)  # the handler looks after 20 ms
        os.killpg(0, signal.SIGINT)
        time.sleep(0.06)
    os.kill(os.getpid(), signal.SIGTERM)
with Signals() as signals:
    command = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE)
    command.stdout.read(1)
    with signals.passed_to(command):
        threading.Thread(target=send).start()
        print(command.wait())
"""


def test_signals_that_come_while_one_is_handled_wait_for_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_SIGNALS], capture_output=True, text=True, timeout=60, process_group=0,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{-signal.SIGTERM}\n"), done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("--select", "fastest"),
        ("--policy", "best"),
        ("--search", "wild"),
        ("--device", "tpu"),
        ("--device", "simulated:v100,colour=1"),
        ("--cpu", "maybe"),
    ],
)
def test_a_wrong_option_stops_before_the_training_starts(zeus: Cli, wrong: tuple[str, str]) -> None:
    sentence = said(zeus.refused("run", "--device", SIMULATED, *wrong, "--", "touch", "trained"))
    assert wrong[1].split(",")[-1].split("=")[0] in sentence
    assert not (zeus.directory / "trained").exists()


def test_how_to_ask_later_names_the_archive_as_a_shell_takes_it(tmp_path: Path) -> None:
    """The command for a late report asked another archive, and that for SQL had a name of two words."""
    where, settings = Places(tmp_path, tmp_path), Settings(archive=Path("a b.duckdb"))
    with Signals() as signals:
        own = ServicesOfCommand(where, {}, signals)
        assert how_to_ask(own, settings, where, "sql") == "zeus-stream sql --archive 'a b.duckdb'"
        late = so_far(where, "run-1", how_to_ask(own, settings, where, "report"))
    assert late.endswith("`zeus-stream report --archive 'a b.duckdb' run-1` prints what is archived.")


def test_without_a_driver_it_says_so_at_once_and_trains(zeus: Cli) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    completed = zeus(
        "run", "--device", "nvml", "--cpu", "off", "--", sys.executable, "-c", "print('trained')"
    )
    assert (completed.returncode, completed.stdout) == (0, "trained\n")
    lines = complaints(completed.stderr).splitlines()
    assert lines[0] == "zeus-stream: starting the collector and the analyzer ..."
    assert any("nvml" in line.lower() for line in lines[1:])
    assert "--device simulated:v100x1" in completed.stderr


def test_the_exit_code_of_a_command_is_not_lost_where_the_parent_ignores_the_end_of_children(
    zeus: Cli,
) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = ["-m", "zeus_stream", "run", "--device", SIMULATED, "--", "sh", "-c", "exit 3"]
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *command],
        env=zeus.environment,
        cwd=zeus.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [(), ("--measure-only",)])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (("--archive", "notes.txt"), "it is no DuckDB database"),
        (("--archive", "."), "Is a directory"),
        (("--archive", "absent/energy.duckdb"), "there is no such directory"),
        (("--dir", "/proc/zeus-stream"), "could not be created"),
        (("--dir", "notes.txt/state"), "could not be created: Not a directory"),
        (("--dir", f"/tmp/{'a' * 110}"), "its path is over 107 bytes"),
    ],
)
def test_a_setup_that_cannot_be_used_stops_before_the_command_starts(
    zeus: Cli, wrong: tuple[str, str], why: str, how: tuple[str, ...]
) -> None:
    (zeus.directory / "notes.txt").write_text("not a database " * 1000, encoding="utf-8")
    completed = zeus.refused("run", "--device", SIMULATED, *wrong, *how, "--", "touch", "trained")
    assert why in said(completed)
    assert not (zeus.directory / "trained").exists()
    assert holder(zeus.directory / "collector.lock") is None
    with suppress(OSError):
        Path(wrong[1]).rmdir()


def test_an_analyzer_that_cannot_start_is_named_at_once_and_does_not_stop_the_training(zeus: Cli) -> None:
    damaged = zeus.directory / "damaged.duckdb"
    damaged.write_bytes(bytes(8) + b"DUCK" + bytes(20_000))
    script = "import time; time.sleep(5); print('trained'); exit(3)"
    with zeus.start(
        "run", "--device", SIMULATED, "--archive", str(damaged), "--", sys.executable, "-c", script
    ) as ours:
        out, err = ours.communicate(timeout=300)
    assert (ours.returncode, out) == (3, "trained\n")
    assert err.index("the analyzer has ended: the command goes on.") < err.index("did not answer")
    assert str(damaged) in err


INTERRUPTED = """
import pathlib, zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu:
    try:
        for step in zeus_stream.steps(range(10**6)):
            gpu.run(0.01)
            if step == 5:
                pathlib.Path(READY).touch()
    except KeyboardInterrupt:
        ENDS
"""


@pytest.mark.parametrize("ends", ["raise", "exit(1)"])
def test_a_command_that_is_interrupted_is_stopped_not_failed(zeus: Cli, ends: str) -> None:
    ready = zeus.directory / "ready"
    script = zeus.script(INTERRUPTED.replace("READY", repr(str(ready))).replace("ENDS", ends))
    with zeus.start("run", "--device", SIMULATED, "--select", "none", "--", sys.executable, script) as ours:
        until(lambda: ready.exists() or ours.poll() is not None)
        ours.send_signal(signal.SIGINT)
        _, err = ours.communicate(timeout=300)
    assert ours.returncode == 128 + signal.SIGINT, err
    assert re.search("^stopped +ended by SIGINT", err, re.MULTILINE), err
    assert "failed" not in err
    if ends == "raise":
        archive = ("--archive", str(zeus.directory / "energy.duckdb"))
        text = zeus("report", *archive).stdout
        assert re.search("^stopped +.*KeyboardInterrupt *$", text, re.MULTILINE), text
        assert zeus("report", *archive, "--html", "page.html").returncode == 0
        assert "UTC, stopped (KeyboardInterrupt)." in (zeus.directory / "page.html").read_text()


def test_a_second_ctrl_c_leaves_a_command_that_does_not_end_with_the_limits_restored(zeus: Cli) -> None:
    go = zeus.directory / "go"
    script = f"""
import os, signal, zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
signal.signal(signal.SIGINT, signal.SIG_IGN)
with attach("imagenet") as gpu:
    for _ in zeus_stream.steps(iter(lambda: os.path.exists({str(go)!r}), True)):
        gpu.run(0.01)
"""
    bus = SimulatedBus.parse(SIMULATED, directory=zeus.directory)
    (gpu,) = bus.discover()
    found_mw = gpu.read_control("power_limit")
    with zeus.start("run", "--device", SIMULATED, *QUICK, "--", sys.executable, "-c", script) as ours:
        until(lambda: (gpu.read_control("power_limit") or 0) < (found_mw or 0) or ours.poll() is not None)
        ours.send_signal(signal.SIGINT)
        time.sleep(0.2)
        ours.send_signal(signal.SIGINT)
        until(lambda: ours.poll() is not None)
        assert gpu.read_control("power_limit") == found_mw
        go.touch()
        _, err = ours.communicate(timeout=300)
    bus.close()
    assert ours.returncode == 128 + signal.SIGINT
    assert "has not ended. It goes on unmeasured." in err
    assert "left without the report" in err
    assert holder(zeus.directory / "collector.lock") is None
    assert not list((zeus.directory / "restore").glob("*.json"))


def test_a_training_begins_before_the_analyzer_answers_and_goes_on_after_the_collector(zeus: Cli) -> None:
    """It waits for the collector alone: a second on a quiet machine, of which the analyzer takes more."""
    go = zeus.directory / "go"
    script = f"""
import pathlib, time
print("asked:", pathlib.Path({str(zeus.directory / "query")!r}).exists(), flush=True)
end_s = time.monotonic() + 60
while not pathlib.Path({str(go)!r}).exists() and time.monotonic() < end_s:
    time.sleep(0.01)
"""
    with zeus.start("run", "--device", SIMULATED, "--", sys.executable, "-c", script) as ours:
        assert ours.stdout is not None
        assert ours.stderr is not None
        assert ours.stdout.readline() == "asked: False\n"
        collector = until(lambda: holder(zeus.directory / "collector.lock"))
        os.kill(collector, signal.SIGKILL)
        lines = iter(ours.stderr.readline, "")
        assert any("the collector has ended: the command goes on." in line for line in lines)
        assert ours.poll() is None
        go.touch()
        ours.communicate(timeout=300)


def test_the_example_learns_and_is_measured(zeus: Cli) -> None:
    pytest.importorskip("sklearn", reason="the example needs the extra `demo`")
    script = str(ROOT / "examples" / "train_digits.py")
    example = (sys.executable, script, "--epochs", "2", "--work-ms", "10")
    completed = zeus("run", "--device", SIMULATED, "--select", "none", "--", *example)
    assert completed.returncode == 0, completed.stderr
    assert "accuracy 9" in completed.stdout
    assert "2 epochs, 92 steps on 1 GPU" in completed.stderr
    assert "J (95 %:" in completed.stderr


STOPS_AT_A_CHECKPOINT = """
import zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu:
    for epoch in zeus_stream.epochs(500):
        for _ in zeus_stream.steps(range(20)):
            gpu.run(0.02)
        if zeus_stream.over_budget():
            print("ended")
            break
"""


def test_a_run_ends_at_the_checkpoint_after_its_energy_budget_and_its_forecasts_are_stored(zeus: Cli) -> None:
    completed = zeus(
        "run", "--select", "none", "--device", SIMULATED, "--stop-at", "400J",
        "--", sys.executable, "-c", STOPS_AT_A_CHECKPOINT,
    )  # fmt: skip
    assert (completed.returncode, completed.stdout) == (0, "ended\n"), completed.stderr
    assert "It ends at its next checkpoint" in completed.stderr
    made = json.loads(zeus("sql", "--format", "json", "FROM forecasts ORDER BY step").stdout)
    assert {(row["epochs"], row["steps"]) for row in made} == {(500, 10_000)}
    assert made[-1]["energy_j"] > 400
    (spent,) = json.loads(zeus("sql", "--format", "json", "SELECT energy_j FROM run_energy").stdout)
    assert 400 <= spent["energy_j"] < 4000
