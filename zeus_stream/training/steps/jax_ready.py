"""The door to JAX: outputs know whether they are ready. It never imports JAX."""

import sys
from typing import Any, cast

from zeus_stream.training.steps.step_boundaries import Output


def output(value: Any) -> Output | None:
    """Return the first array in a value or tree of values: the outputs of one computation are ready at once.

    None: there is no array in it.
    """
    tree: Any = getattr(sys.modules.get("jax"), "tree", None)
    leaves = [value] if tree is None else tree.leaves(value)
    return next((cast("Output", leaf) for leaf in leaves if callable(getattr(leaf, "is_ready", None))), None)
