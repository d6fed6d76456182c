"""Measure what a training step costs in joules, and find the power limit that makes it cost less.

    for epoch in zeus_stream.epochs(10):
        for batch in zeus_stream.steps(loader):
            train(batch)

    with zeus_stream.window("validation") as w:
        evaluate()
    print(w.energy())

    zeus_stream.connect().sql("select * from epochs")        # a pyarrow.Table, while it runs

Importing this costs nothing: what it names is imported when it is first used.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_stream.integrations.optimizer import auto
    from zeus_stream.integrations.run_budget import over_budget
    from zeus_stream.integrations.trackers import log_energy_to
    from zeus_stream.live.archive_file import open_archive as open  # noqa: A004  (the name of its users)
    from zeus_stream.own_services import start
    from zeus_stream.simulated_gpu import accelerator as simulated
    from zeus_stream.training.answers import Missing, WindowEnergy
    from zeus_stream.training.default import (
        ends_with,
        epochs,
        metric,
        phase,
        pipeline,
        recurring,
        steps,
        window,
    )
    from zeus_stream.training.publisher import Publisher
    from zeus_stream.transport.client import Connection, connect

__all__ = [
    "Connection",
    "Missing",
    "Publisher",
    "WindowEnergy",
    "auto",
    "connect",
    "ends_with",
    "epochs",
    "log_energy_to",
    "metric",
    "open",
    "over_budget",
    "phase",
    "pipeline",
    "recurring",
    "simulated",
    "start",
    "steps",
    "window",
]
_HOMES = {
    "Connection": "transport.client",
    "connect": "transport.client",
    "open": "live.archive_file",
    "auto": "integrations.optimizer",
    "log_energy_to": "integrations.trackers",
    "over_budget": "integrations.run_budget",
    "Missing": "training.answers",
    "Publisher": "training.publisher",
    "WindowEnergy": "training.answers",
    "start": "own_services",
    "load_ipython_extension": "integrations.notebook",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _import("zeus_stream.package_version").VERSION
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "simulated":
        return _import("zeus_stream.simulated_gpu.accelerator")
    home = _HOMES.get(name, "training.default")
    attribute = "open_archive" if name == "open" else name
    try:
        module = _import(f"zeus_stream.{home}")
    except ModuleNotFoundError as wrong:
        install = _import("zeus_stream.service_packages").install_command
        raise ModuleNotFoundError(
            f"zeus_stream.{name}: could not be used: {wrong.name} is not installed."
            f" Install all that zeus-stream needs: {install('services')}.",
            name=wrong.name,
        ) from wrong
    value = globals()[name] = getattr(module, attribute)
    return value


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, "__version__"})
