"""Metric families as Prometheus reads them: the text format 0.0.4. Pure."""

from collections.abc import Iterable

from zeus_stream.screens.metrics.metrics import Family, MetricSample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def text(families: Iterable[Family]) -> str:
    """Return the families in the text format. Families of one name become one; empty ones are left out."""
    merged: dict[str, tuple[Family, list[MetricSample]]] = {}
    for family in families:
        merged.setdefault(family.name, (family, []))[1].extend(family.samples)
    lines = []
    for name, (family, samples) in merged.items():
        if samples:
            lines += [f"# HELP {name} {family.help.translate(_HELP)}", f"# TYPE {name} {family.kind}"]
            for sample in samples:
                lines += _histogram(name, sample) if family.kind == "histogram" else [_line(name, sample)]
    return "\n".join(lines) + "\n" if lines else ""


def _histogram(name: str, sample: MetricSample) -> list[str]:
    """Return the lines of a histogram: how many values are at most each bound, their sum, their number."""
    lines, count = [], 0
    for exponent, more in sample.buckets:
        count += more
        lines.append(_line(f"{name}_bucket", sample, count, ("le", repr(2.0**exponent))))
    return [
        *lines,
        _line(f"{name}_bucket", sample, count, ("le", "+Inf")),
        _line(f"{name}_sum", sample),
        _line(f"{name}_count", sample, count),
    ]


def _line(name: str, sample: MetricSample, value: float | None = None, *more: tuple[str, str]) -> str:
    pairs = ",".join(f'{name}="{text.translate(_LABEL)}"' for name, text in (*sample.labels, *more))
    return f"{name}{f'{{{pairs}}}' if pairs else ''} {_number(sample.value if value is None else value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
