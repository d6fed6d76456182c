"""A checkpoint outlives an upgrade that left the state classes alone, and no other one."""

import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from analyzers.checkpoints.machine_state import restore, state_of
from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from tests.simulation.simulated_site import Training
from tests.simulation.world import World, outputs_of
from zeus_stream.settings import Settings

ROOT = Path(__file__).parents[3]
SETTINGS = Settings(
    select="energy", search="exhaustive", stride_w=50, warmup_steps=1, profile_steps=5, settle_ms=0
)
CHILD = """
import pickle, sys
from hashlib import sha256
from analyzers.checkpoints.machine_state import restore
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import each_row
from zeus_stream.errors import MalformedError
with open(sys.argv[1], "rb") as file:
    settings, state, frames = pickle.load(file)
interpreter = Interpreter(RunSettings.of(settings, selectors.parse(settings.select), 1))
try:
    restore(interpreter.site, state, selectors.parse)
except MalformedError as wrong:
    sys.exit(f"refused: {wrong}")
outputs = []
for frame, body in frames:
    rows, instructions = interpreter.handle(Logged(frame, body), frame.t_ns)
    outputs += [*each_row(rows), *instructions]
print(len(outputs), sha256(repr(outputs).encode()).hexdigest())
"""
OTHER_CODE = {
    "analyzers/interpreter/events.py": ("def handle(", "def added() -> None:\n    pass\n\n\ndef handle("),
    "analyzers/fleet/session.py": (
        "        return max(0, self.started.wall_ns + t_ns - self.started.t_ns)",
        "        since_ns = t_ns - self.started.t_ns\n        return max(0, self.started.wall_ns + since_ns)",
    ),
    "analyzers/measurement/timeline.py": ("CHECK_NS", "CHECKED_NS"),
}
OTHER_STATE = {
    "analyzers/fleet/session.py": (
        "        self.session = session\n",
        "        self.session = self.added = session\n",
    )
}


def build(directory: Path, changes: Mapping[str, tuple[str, str]]) -> None:
    """Copy the product, with other code in some modules."""
    for package in ("analyzers", "zeus_stream"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, after) in changes.items():
        text = (directory / name).read_text(encoding="utf-8")
        assert before in text
        (directory / name).write_text(text.replace(before, after), encoding="utf-8")


def go_on(directory: Path, handed_over: Path) -> "subprocess.CompletedProcess[str]":
    """Go on from a state in another build."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(handed_over)],
        cwd=directory, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a state in the middle of a search with the frames that follow, and what these give."""
    plan = RunSettings.of(SETTINGS, selectors.parse(SETTINGS.select), 1)
    world = World("simulated:v100x1,seed=3,noise=0.02", Training("imagenet", 0.02, 60, noise=0.02), plan)
    world.run()
    half = len(world.frames) // 2
    interpreter, same = Interpreter(plan), Interpreter(plan)
    for frame, body in world.frames[:half]:
        outputs_of(interpreter, frame, body)
    state = state_of(interpreter.site)
    restore(same.site, state, selectors.parse)
    outputs = [output for frame, body in world.frames[half:] for output in outputs_of(same, frame, body)]
    path = tmp_path_factory.mktemp("handed") / "over.pickle"
    path.write_bytes(pickle.dumps((SETTINGS, state, world.frames[half:])))
    return path, f"{len(outputs)} {sha256(repr(outputs).encode()).hexdigest()}"


def test_a_build_whose_other_code_changed_goes_on_from_a_checkpoint(
    tmp_path: Path, played: tuple[Path, str]
) -> None:
    handed_over, expected = played
    build(tmp_path, OTHER_CODE)
    done = go_on(tmp_path, handed_over)
    assert done.stdout.strip() == expected, done.stderr


def test_a_build_whose_state_classes_changed_refuses_it(tmp_path: Path, played: tuple[Path, str]) -> None:
    handed_over, _ = played
    build(tmp_path, OTHER_STATE)
    assert "its classes consist of other parts by now" in go_on(tmp_path, handed_over).stderr
