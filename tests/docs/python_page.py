"""The page of the Python functions, from their docstrings. `tests.docs.reference` writes it."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import zeus_stream
from zeus_stream import zeus

NOTE = "<!-- Written by `python -m tests.docs.reference`. Do not edit. -->\n"
HEAD = """# Python

`import zeus_stream` is light: what it names is imported when it is first used. A training script needs no
other import. Nothing here raises into a training loop, unless its text says so.
"""
HOMES = (
    "training.answers.",
    "training.publisher.",
    "training.windows.",
    "training.recurring.",
    "training.steps.step_recorder.",
    "transport.client.",
    "live.archive_file.",
    "integrations.optimizer.",
    "zeus.monitor.energy.",
    "zeus.optimizer.selectors.",
    "zeus.monitor.power.",
    "pathlib._local.",
    "pathlib.",
    "typing.",
)
"""Modules that signatures name, and no reader needs."""
RETURNED = {
    "Window": "training.windows",
    "Loop": "training.steps.step_recorder",
    "Recurring": "training.recurring",
    "Pipeline": "training.steps.pipeline_recorder",
    "OptimizerSteps": "integrations.optimizer",
    "EnergyLog": "integrations.trackers",
    "ArchiveFile": "live.archive_file",
    "Accelerator": "simulated_gpu.accelerator",
    "Statistics": "training.answers",
}
"""Classes of what the public functions return, and their modules."""
FOR_CALLBACKS = {
    "Connection": {"ask"},
    "Publisher": {"follow", "know", "want_search", "silence"},
    "OptimizerSteps": {
        "begin", "end", "close", "forget", "begin_epoch", "end_epoch", "begin_step", "end_step",
        "cancel_step", "mark", "begin_pause", "end_pause", "cancel_pause", "record", "end_interval",
    },
}  # fmt: skip
"""Methods that callbacks of frameworks and screens use, and no script."""
LIKE = {"ArchiveFile": "Connection"}
"""Classes whose methods the page has under another class."""
AS_THE_FUNCTION = re.compile(r"see `zeus_stream\.(\w+)`\.$")
"""The end of a method's docstring that says no more than the function of its name."""
RETURNED_HEAD = """## What these return

Nobody makes these objects: the functions above return them.
"""
ZEUS_HEAD = """## zeus_stream.zeus

Classes with the names and signatures of Zeus 0.16, which [Coming from Zeus](../coming-from/zeus.md) explains.
`help()` has their arguments, which are those of Zeus:
"""


def python_page() -> str:
    """Return the page: each public name, its signature and its docstring."""
    parts = [HEAD, NOTE]
    for name in zeus_stream.__all__:
        value = getattr(zeus_stream, name)
        parts += _module(name, value) if inspect.ismodule(value) else _described(name, value)
    parts.append(RETURNED_HEAD)
    for name, kind in returned().items():
        parts += _described(name, kind, "###", made_by_others=True)
    parts.append(ZEUS_HEAD)
    return "\n".join([*parts, ", ".join(f"`{name}`" for name in zeus.__all__)]) + ".\n"


def returned() -> dict[str, type]:
    """Return the classes of `RETURNED` by name."""
    return {name: getattr(import_module(f"zeus_stream.{home}"), name) for name, home in RETURNED.items()}


def _described(name: str, value: Any, heading: str = "##", *, made_by_others: bool = False) -> Iterator[str]:
    yield f"{heading} {name}\n"
    texts = [_text(name, value, signed=not made_by_others)]
    if inspect.isclass(value):
        texts += _texts_of_methods(name, value)
    yield "```text\n" + "\n\n".join(texts) + "\n```\n"


def _module(name: str, module: Any) -> Iterator[str]:
    yield f"## {name}\n"
    functions = [
        _text(f"{name}.{each}", value)
        for each, value in vars(module).items()
        if inspect.isfunction(value) and not each.startswith("_") and value.__module__ == module.__name__
    ]
    yield "```text\n" + "\n\n".join(functions) + "\n```\n"


def _texts_of_methods(name: str, kind: type) -> Iterator[str]:
    """Yield the text of each method that a script calls; those of a function's name share one line."""
    left_out = FOR_CALLBACKS.get(name, set())
    methods = [(each, method) for each, method in _methods(kind) if each not in left_out]
    if name in LIKE:
        yield f"{name}.{', .'.join(each for each, _ in methods)}\n    Do what those of {LIKE[name]} do."
        return
    same = [
        each for each, method in methods if AS_THE_FUNCTION.findall(inspect.getdoc(method) or "") == [each]
    ]
    if same:
        yield f"{name}.{', .'.join(same)}\n    Do what the functions of these names in `zeus_stream` do."
    for each, method in methods:
        if each not in same:
            yield _text(f"{name}.{each}", method)


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    ours = [each for each in kind.__mro__ if each.__module__.startswith("zeus_stream.")]
    members = {name: value for each in reversed(ours) for name, value in vars(each).items()}
    for name, value in members.items():
        if inspect.isfunction(value) and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _text(name: str, value: Any, *, signed: bool = True) -> str:
    try:
        signature = (
            ""
            if not signed
            else str(inspect.signature(value)).replace("zeus_stream.", "").replace("collections.abc.", "")
        )
    except ValueError:
        signature = ""
    lines = (inspect.getdoc(value) or "").splitlines()
    return "\n".join([f"{name}{_short(signature)}", *(f"    {line}".rstrip() for line in lines)])


def _short(signature: str) -> str:
    """Return a signature without ``self``, the homes of its types, and that nothing is returned."""
    signature = re.sub(r"^\(self(, )?", "(", signature).removesuffix(" -> None")
    for home in HOMES:
        signature = signature.replace(home, "")
    return signature
