"""A notebook's cells: real IPython, real services, a simulated GPU."""

import json
import re
from pathlib import Path

from tests.environment import run
from tests.waiting import until
from zeus_stream.paths import holder

CELLS = (
    "%load_ext zeus_stream",
    "from zeus_stream import simulated\ngpu = simulated.attach('imagenet').__enter__()",
    "%%energy warm\ngpu.run(0.2)",
    "%%energy\ngpu.run(0.5)\nx = 6 * 7\nx",
    "joules = _energy.energy_j",
    "%%energy two words\npass",
    "%%energy failed\n1 / 0",
    "%%energy\nimport asyncio\nawait asyncio.sleep(0.1)",
)
DRIVER = """
import asyncio, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
async def run(cell):
    return type(shell.run_cell(cell).error_in_exec).__name__
errors = [asyncio.run(run(cell)) for cell in json.load(sys.stdin)]
print(json.dumps([errors, shell.user_ns["joules"], shell.user_ns["x"]]))
"""


def test_a_cell_has_its_joules_and_an_error_in_it_stays_an_error(zeus_dir: Path) -> None:
    more = {"ZEUS_STREAM_DEVICE": "simulated:v100x1", "IPYTHONDIR": str(zeus_dir / "ipython")}
    done = run(zeus_dir, "-c", DRIVER, given=json.dumps(CELLS), env=more)
    assert done.returncode == 0, done.stderr
    errors, joules, answer = json.loads(done.stdout.splitlines()[-1])
    none = "NoneType"
    assert errors == [none, none, none, none, none, "ValueError", "CellFailedError", "ValueError"], (
        done.stdout
    )
    assert 50 < joules < 200, "0.5 s of work of a V100"
    assert answer == 42
    assert done.stdout.count("Traceback") == 3, "of the wrong name, the division and the await: each once"
    assert "could not measure a cell that awaits" in done.stdout
    assert re.search(r"^cell: [\d.]+ J \([\d.]+ to [\d.]+\) in [\d.]+ s on 1 GPU$", done.stdout, re.MULTILINE)
    assert re.search(r"^warm: ", done.stdout, re.MULTILINE)
    until(lambda: holder(zeus_dir / "keeper.lock") is None)
