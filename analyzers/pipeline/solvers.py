"""The one door to SciPy: linear and integer programs by HiGHS, and non-negative least squares. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zeus_stream.errors import RefusedError, UnsupportedError
from zeus_stream.service_packages import install_command, silent_stdout

Vector = NDArray[np.float64]


@dataclass(slots=True)
class Rows:
    """Rows of a sparse matrix with their right-hand sides."""

    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, entries: Sequence[tuple[int, float]], right: float) -> None:
        """Add a row: (column, value) of what is not zero."""
        self._rows.extend([len(self.right)] * len(entries))
        self._columns.extend(column for column, _ in entries)
        self._values.extend(value for _, value in entries)
        self.right.append(right)

    def matrix(self, columns: int) -> Any:
        return _scipy().csr_array((self._values, (self._rows, self._columns)), (len(self.right), columns))


def minimize(cost: Vector, at_most: Rows, equal: Rows, upper: Vector) -> tuple[Vector, Vector, float]:
    """Return the x >= 0 of least ``cost @ x``, the price of each equation's right side, and the cost.

    ``at_most``: ``matrix @ x <= right``; ``equal``: ``matrix @ x == right``; ``upper``: of each x. Raises
    RefusedError: there is no such x, or the solver gave up. UnsupportedError: SciPy is not installed.
    """
    optimize = _scipy("optimize")
    bounds = np.column_stack([np.zeros(len(cost)), upper])
    done = optimize.linprog(
        cost,
        at_most.matrix(len(cost)),
        at_most.right,
        equal.matrix(len(cost)),
        equal.right,
        bounds,
        method="highs",
    )
    if done.x is None:
        raise RefusedError(
            f"pipeline: could not plan clocks: {str(done.message).rstrip('. ')}. Allow a longer iteration."
        )
    prices = np.asarray(done.eqlin.marginals, np.float64)
    return np.asarray(done.x, np.float64), prices, float(done.fun)


def minimize_whole(
    cost: Vector, at_most: Rows, equal: Rows, upper: Vector, whole: int, nodes: int, close: float
) -> tuple[Vector | None, float]:
    """Return the best x found whose first ``whole`` entries are whole numbers, and a bound of the least cost.

    Arguments as of `minimize`. ``nodes``: of the search, at most; a limit of time would make answers differ.
    ``close``: share of the cost, within which of the bound the search ends.
    """
    optimize = _scipy("optimize")
    free, fixed = at_most.matrix(len(cost)), equal.matrix(len(cost))
    with silent_stdout():  # HiGHS 1.12 prints when it repairs a solution, whatever its options are
        done = optimize.milp(
            cost,
            integrality=np.arange(len(cost)) < whole,
            bounds=optimize.Bounds(0.0, upper),
            constraints=[(free, -np.inf, at_most.right), (fixed, equal.right, equal.right)],
            options={"node_limit": nodes, "mip_rel_gap": close},
        )
    bound = -np.inf if done.mip_dual_bound is None else float(done.mip_dual_bound)
    return None if done.x is None else np.asarray(done.x, np.float64), bound


def non_negative_least_squares(matrix: Vector, right: Vector) -> Vector:
    """Return the x >= 0 of least ``|matrix @ x - right|``. Raises UnsupportedError: without SciPy."""
    return np.asarray(_scipy("optimize").nnls(matrix, right)[0], np.float64)


def _scipy(part: str = "sparse") -> Any:
    try:
        from scipy import optimize, sparse  # noqa: PLC0415  (only an analyzer that plans clocks needs it)
    except ImportError as missing:
        raise UnsupportedError(
            "pipeline: could not plan clocks: SciPy is not installed."
            f" Install it for the analyzer: {install_command('pipeline')}."
        ) from missing
    return optimize if part == "optimize" else sparse
