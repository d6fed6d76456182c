"""The tests that were skipped, by reason: the last line of `make test`.

    python -m tests.skipped main scale

Each run of pytest keeps its own beside its failures, in its cache directory.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

KEY = "zeus-stream/skipped"
CACHE = Path(".pytest_cache")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keep why tests of this run were skipped. A run of failures alone says nothing about the others."""
    if not config.pluginmanager.has_plugin("cacheprovider") or config.cache is None or config.option.lf:
        return
    reports = {report.nodeid: report for report in terminalreporter.stats.get("skipped", ())}
    config.cache.set(KEY, Counter(map(_reason, reports.values())))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return words.removeprefix("Skipped: ")


def sentence(skipped: Mapping[str, int]) -> str:
    """Return the number of tests that were skipped, and why."""
    if not skipped:
        return "No test was skipped."
    count = sum(skipped.values())
    reasons = "; ".join(f"{number} because {reason}" for reason, number in Counter(skipped).most_common())
    return f"{count} {'test was' if count == 1 else 'tests were'} skipped: {reasons}."


def main(names: Sequence[str]) -> None:
    """Print the sentence about some runs, by the names of their cache directories."""
    skipped: Counter[str] = Counter()
    for name in names:
        file = CACHE / name / "v" / KEY
        skipped.update(
            json.loads(file.read_text()) if file.exists() else {f"the tests of {name} left no account": 1}
        )
    print(sentence(skipped))


if __name__ == "__main__":
    main(sys.argv[1:])
