"""Annotations: sentences in the form that a CI service shows beside a build. Pure."""

from collections.abc import Mapping


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


_TEAMCITY = {"|": "||", "'": "|'", "[": "|[", "]": "|]", "\n": "|n", "\r": "|r"}


def _escaped(text: str) -> str:
    """Return a text in one line: line ends and ``%`` as ``%`` and their code."""
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" else letter for letter in text)
