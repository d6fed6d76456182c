"""What a training step costs in joules, and the power limit that makes it cost less.

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
    from zeus_stream.client import Connection, connect
    from zeus_stream.integrations.optimizer import auto
    from zeus_stream.publisher import (
        Publisher,
        ends_with,
        epochs,
        metric,
        recurring,
        steps,
        window,
    )
    from zeus_stream.windows import Missing, WindowEnergy

__all__ = [
    "Connection",
    "Missing",
    "Publisher",
    "WindowEnergy",
    "auto",
    "connect",
    "ends_with",
    "epochs",
    "metric",
    "recurring",
    "steps",
    "window",
]
_HOMES = {
    "Connection": "client",
    "connect": "client",
    "auto": "integrations.optimizer",
    "Missing": "windows",
    "WindowEnergy": "windows",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "publisher")
    value = globals()[name] = getattr(_import(f"zeus_stream.{home}"), name)
    return value
