"""Sessions of a benchmark in the archive, and the report of one: figures and proven regressions."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from zeus_stream.bench.energy_bench import BenchVariant, calls_metric, window_name
from zeus_stream.bench.energy_difference import (
    EnergyDifference,
    compare_rounds,
    compare_sessions,
    mean_energy,
)
from zeus_stream.quoting import quoted

if TYPE_CHECKING:
    import pyarrow as pa

_TEAMCITY = {"|": "||", "'": "|'", "[": "|[", "]": "|]", "\n": "|n", "\r": "|r"}
SESSIONS = 20
"""The latest sessions that count."""
_SESSIONS = """
WITH repeats AS (
    SELECT run, index, min(began_at) AS began_at, sum(energy_j) AS energy_j,
        string_agg(gpu, ' ' ORDER BY gpu) AS gpus,
        CASE WHEN min(power_limit_w) = max(power_limit_w) THEN min(power_limit_w) END AS power_limit_w
    FROM windows WHERE kind = 'window' AND name = {window} AND NOT of_host(gpu)
    GROUP BY run, index HAVING count(energy_j) = count(*) AND sum(energy_j) > 0
)
SELECT run, CAST(min(repeats.began_at) AS VARCHAR) AS began_at,
    exp(avg(ln(energy_j / calls.value))) AS energy_j, count(*) AS repeats, any_value(gpus) AS gpus,
    any_value(power_limit_w) AS power_limit_w
FROM repeats JOIN metrics AS calls USING (run) WHERE calls.name = {calls}
GROUP BY run ORDER BY began_at
"""


class BenchSession(Struct, frozen=True, kw_only=True):
    """One session of one function."""

    run: str
    began_at: str
    """UTC."""
    energy_j: float
    """Of one call: the geometric mean of the repeats."""
    repeats: int
    gpus: str
    power_limit_w: float | None
    """None: it changed."""


def read_sessions(ask: "Callable[[str], pa.Table]", name: str) -> list[BenchSession]:
    """Return all sessions of a function, the oldest first."""
    query = _SESSIONS.format(window=quoted(window_name(name)), calls=quoted(calls_metric(name)))
    return convert(ask(query).to_pylist(), list[BenchSession])


def comparable_sessions(sessions: Sequence[BenchSession], latest: BenchSession) -> list[BenchSession]:
    """Return the latest sessions before this one, on the same GPUs at the same power limit."""
    alike = [
        each
        for each in sessions
        if each.began_at < latest.began_at
        and (each.gpus, each.power_limit_w) == (latest.gpus, latest.power_limit_w)
    ]
    return alike[-SESSIONS:]


class FunctionResult(Struct, frozen=True, kw_only=True):
    """One function of a session."""

    name: str
    calls: int
    """In each repeat."""
    repeats: int
    """With a known energy."""
    energy_j: float
    """Of one call, as all others."""
    energy_p2_5_j: float
    energy_p97_5_j: float
    duration_s: float | None
    against_first: EnergyDifference | None
    """None: it is the first."""
    against_history: EnergyDifference | None
    """None: there are too few earlier sessions on these GPUs at this power limit."""
    earlier_sessions: int


class BenchReport(Struct, frozen=True, kw_only=True):
    """A session of a benchmark."""

    run: str
    gpus: str
    power_limit_w: float | None
    fail_above_percent: float | None
    regressions: tuple[str, ...]
    """A sentence for each change that is proven to be above."""
    functions: tuple[FunctionResult, ...]


def make_report(
    run: str,
    variants: Sequence[BenchVariant],
    history: Mapping[str, Sequence[BenchSession]],
    fail_above: float | None,
) -> BenchReport:
    """Return what a session has shown: the baseline first, ``history`` with this session, percents.

    Raises RefusedError: too little of it has an energy.
    """
    found: list[FunctionResult] = []
    regressions: list[str] = []
    mine = {name: next(each for each in known if each.run == run) for name, known in history.items()}
    comparisons = len(variants)
    for variant in variants:
        session = mine[variant.name]
        earlier = comparable_sessions(history[variant.name], session)
        energy_j, low_j, high_j = mean_energy(variant.energies_j)
        first = None
        if variant is not variants[0]:
            first = compare_rounds(variants[0].energies_j, variant.energies_j, comparisons)
        past = compare_sessions([each.energy_j for each in earlier], session.energy_j, comparisons)
        for change, against in ((first, variants[0].name), (past, f"{len(earlier)} earlier sessions")):
            if fail_above is not None and change is not None and change.exceeds(fail_above):
                regressions.append(
                    f"{variant.name}: {describe_difference(change)} energy against {against}:"
                    f" more than {fail_above:g} %."
                )
        found.append(
            FunctionResult(
                name=variant.name,
                calls=variant.calls,
                repeats=sum(each is not None for each in variant.energies_j),
                energy_j=energy_j,
                energy_p2_5_j=low_j,
                energy_p97_5_j=high_j,
                duration_s=variant.duration_s,
                against_first=first,
                against_history=past,
                earlier_sessions=len(earlier),
            )
        )
    latest = mine[variants[0].name]
    return BenchReport(
        run=run,
        gpus=latest.gpus,
        power_limit_w=latest.power_limit_w,
        fail_above_percent=fail_above,
        regressions=tuple(regressions),
        functions=tuple(found),
    )


def describe_difference(difference: EnergyDifference) -> str:
    """Return a change with its 95 % interval."""
    return f"{difference.percent:+.2f} % ({difference.low_percent:+.2f} to {difference.high_percent:+.2f})"


def describe_function(result: FunctionResult) -> str:
    """Return the sentence of one function."""
    parts = [f"{result.energy_j:.4g} J ({result.energy_p2_5_j:.4g} to {result.energy_p97_5_j:.4g}) per call"]
    if result.duration_s is not None:
        parts.append(f"{result.duration_s * 1e3:.4g} ms")
    if result.against_first is not None:
        parts.append(f"{describe_difference(result.against_first)} against the first")
    if result.against_history is not None:
        parts.append(
            f"{describe_difference(result.against_history)} against {result.earlier_sessions} earlier"
            " sessions"
        )
    return f"{result.name}: {', '.join(parts)}"


def describe_report(report: BenchReport) -> str:
    """Return a session as text."""
    lines = [describe_function(each) for each in report.functions]
    lines += [f"regression: {sentence}" for sentence in report.regressions]
    if report.fail_above_percent is not None and not report.regressions:
        lines.append(f"no regression above {report.fail_above_percent:g} % is proven")
    return "\n".join([*lines, f"session {report.run}", ""])


def annotation(environ: Mapping[str, str], sentence: str, *, failed: bool) -> str | None:
    """Return the line that the service of this build takes for an annotation. None: it is no such service."""
    if environ.get("GITHUB_ACTIONS") == "true":
        kind = "error" if failed else "notice"
        return f"::{kind} title=zeus-stream bench::{_escaped(sentence)}"
    if environ.get("TF_BUILD") == "True":  # Azure Pipelines
        return f"##vso[task.logissue type=error]{_escaped(sentence)}" if failed else None
    if "TEAMCITY_VERSION" in environ:
        text = "".join(_TEAMCITY.get(letter, letter) for letter in sentence)
        word, name = ("buildProblem", "description") if failed else ("message", "text")
        return f"##teamcity[{word} {name}='{text}']"
    return None


def _escaped(text: str) -> str:
    """Return a text in one line: line ends and ``%`` as ``%`` and their code."""
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" else letter for letter in text)
