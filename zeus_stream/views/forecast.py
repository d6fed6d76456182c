"""The forecast of a run: the energy and the time of the whole, with their intervals. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from zeus_stream.protocol.snapshots import ForecastNow
from zeus_stream.views.costs import cost_words
from zeus_stream.views.quantity import Quantity, bounds, counted

Row = Mapping[str, Any]
FORECAST = "FROM run_forecasts WHERE run = {run}"
COSTS = "FROM forecast_costs WHERE run = {run} ORDER BY name"


class ForecastView(Struct, frozen=True, kw_only=True):
    """The latest forecast of an open run."""

    energy: Quantity
    """Of the whole run."""
    duration: Quantity
    """Of the whole run. Not known of a live snapshot."""
    left: Quantity
    """To its end. Not known of a row of the archive: it says when the forecast was made, not what is now."""
    epochs: int | None
    steps: int
    made_after: str = ""
    """How far the run was when it was made."""

    @property
    def energy_words(self) -> str:
        """Return the energy of the whole run."""
        if self.energy.known is None:
            return "energy not known"
        interval = bounds(self.energy)
        return f"{self.energy} in all" + (
            f" (95 %: {interval})" if interval else ", interval after one more epoch"
        )

    @property
    def duration_words(self) -> str:
        """Return the duration of the whole run."""
        return "time not known" if self.duration.known is None else _with(self.duration)

    @property
    def left_words(self) -> str:
        """Return the time to the end."""
        return "time to the end not known" if self.left.known is None else f"ends in {_with(self.left)}"

    @property
    def length_words(self) -> str:
        """Return the length of the run that the forecast is about."""
        return _length(self.epochs, self.steps)


def _length(epochs: int | None, steps: int) -> str:
    lengths = ((epochs, "epoch"), (steps or None, "step"))
    return ", ".join(counted(count, what) for count, what in lengths if count is not None)


def _with(duration: Quantity) -> str:
    interval = bounds(duration)
    return f"{duration} ({interval})" if interval else str(duration)


def _in_all(value: float | None, low: float | None, high: float | None, spent_j: float | None) -> Quantity:
    """Return the energy of a whole run. A run never takes less than it has since the forecast was made."""
    value, low, high = (each if each is None else max(each, spent_j or 0.0) for each in (value, low, high))
    return Quantity(value, "J", low, high)


def forecast_of_live(now: ForecastNow | None, spent_j: float | None) -> ForecastView | None:
    """Return the forecast that a live snapshot has. ``spent_j``: energy of the run so far."""
    if now is None:
        return None
    return ForecastView(
        energy=_in_all(now.energy_j, now.energy_low_j, now.energy_high_j, spent_j),
        duration=Quantity(None, "s"),
        left=Quantity(now.left_s, "s", now.left_low_s, now.left_high_s),
        epochs=now.epochs,
        steps=now.steps,
    )


def forecast_of_row(row: Row | None, spent_j: float | None) -> ForecastView | None:
    """Return the forecast that a row of ``run_forecasts`` has. ``spent_j``: energy of the run so far."""
    if row is None:
        return None
    return ForecastView(
        energy=_in_all(row["energy_j"], row["energy_p2_5_j"], row["energy_p97_5_j"], spent_j),
        duration=Quantity(row["duration_s"], "s", row["duration_p2_5_s"], row["duration_p97_5_s"]),
        left=Quantity(None, "s"),
        epochs=row["epochs"],
        steps=row["steps"],
        made_after=_length(row["epochs_done"], row["step"]),
    )


def forecast_facts(view: ForecastView | None, costs: Iterable[Row] = ()) -> list[tuple[str, str]]:
    """Return the forecast of a run, names and texts. Nothing if there is none."""
    if view is None:
        return []
    words = f"{view.energy_words}, {view.duration_words}, of {view.length_words}"
    made = f"; made after {view.made_after}" if view.made_after else ""
    facts = [("forecast", words + made)]
    return facts + [(f"forecast, {row['name']}", " ".join(filter(None, cost_words(row)))) for row in costs]
