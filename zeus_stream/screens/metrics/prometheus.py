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
            lines += [f"{name}{sample.suffix}{_labels(sample)} {_number(sample.value)}" for sample in samples]
    return "\n".join(lines) + "\n" if lines else ""


def _labels(sample: MetricSample) -> str:
    if not sample.labels:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_LABEL)}"' for name, value in sample.labels)
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
