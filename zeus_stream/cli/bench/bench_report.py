"""The report of a session: figures, differences, and the regressions that are proven."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zeus_stream.bench.energy_bench import BenchVariant
from zeus_stream.bench.energy_difference import (
    EnergyDifference,
    compare_rounds,
    compare_sessions,
    mean_energy,
)
from zeus_stream.cli.bench.bench_history import BenchSession, comparable_sessions

_TEAMCITY = {"|": "||", "'": "|'", "[": "|[", "]": "|]", "\n": "|n", "\r": "|r"}


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
