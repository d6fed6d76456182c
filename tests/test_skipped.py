"""The account of skipped tests: how many, and for which reasons."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.skipped import sentence

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
pytest.importorskip("sys")

@pytest.mark.skipif(True, reason="there is no GPU")
@pytest.mark.parametrize("number", range(2))
def test_gpu(number): ...

def test_driver():
    pytest.skip("there is no driver")

def test_all():
    pass
"""


@pytest.mark.sweep
def test_a_run_says_at_its_end_how_many_tests_were_skipped_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    pytest_run = [
        sys.executable,
        "-m",
        "pytest",
        "--quiet",
        "-p",
        "tests.skipped",
        "--rootdir",
        str(tmp_path),
    ]
    cache = ["--override-ini", f"cache_dir={tmp_path}/.pytest_cache/main"]
    for more in ([], ["--last-failed", "--last-failed-no-failures", "none"]):  # as `make test` asks again
        subprocess.run(
            [*pytest_run, *cache, *more, str(tmp_path)], cwd=ROOT, check=not more, capture_output=True
        )
    done = subprocess.run(
        [sys.executable, "-m", "tests.skipped", "main", "scale"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == (
        "5 tests were skipped: 2 because there is no GPU; 1 because could not import 'no_such_module':"
        " No module named 'no_such_module'; 1 because there is no driver; 1 because the tests of scale left"
        " no account.\n"
    )


def test_one_and_none_are_words() -> None:
    assert sentence({}) == "No test was skipped."
    assert sentence({"there is no GPU": 1}) == "1 test was skipped: 1 because there is no GPU."
