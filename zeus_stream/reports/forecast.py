"""The forecast of a run as text: rows of ``run_forecasts`` and ``forecast_costs``. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from zeus_stream.reports.html.quantities import joules, seconds

Row = Mapping[str, Any]
FORECAST = "FROM run_forecasts WHERE run = {run}"
COSTS = "FROM forecast_costs WHERE run = {run} ORDER BY name"


def energy_words(energy_j: float | None, low_j: float | None, high_j: float | None) -> str:
    """Return the energy of a whole run with its interval, as far as they are known."""
    if energy_j is None:
        return "energy not known"
    if low_j is None or high_j is None:
        return f"{joules(energy_j)} in all, interval after one more epoch"
    return f"{joules(energy_j)} in all (95 %: {joules(low_j)} to {joules(high_j)})"


def time_words(left_s: float | None, low_s: float | None, high_s: float | None) -> str:
    """Return the time to the end of a run with its interval, as far as they are known."""
    if left_s is None:
        return "time to the end not known"
    sure = "" if low_s is None or high_s is None else f" ({seconds(low_s)} to {seconds(high_s)})"
    return f"ends in {seconds(left_s)}{sure}"


def length_words(epochs: int | None, steps: int) -> str:
    """Return the length of a run that its forecast is about."""
    return f"{steps:,} steps" if epochs is None else f"{epochs:,} epochs, {steps:,} steps"


def forecast_facts(row: Row | None, costs: Iterable[Row] = ()) -> list[tuple[str, str]]:
    """Return the forecast of a run, names and texts. Nothing if there is none."""
    if row is None:
        return []
    energy = energy_words(row["energy_j"], row["energy_p2_5_j"], row["energy_p97_5_j"])
    duration, low, high = row["duration_s"], row["duration_p2_5_s"], row["duration_p97_5_s"]
    sure = "" if low is None or high is None else f" ({seconds(low)} to {seconds(high)})"
    made = f"made after {row['epochs_done']:,} epochs, {row['step']:,} steps"
    words = f"{energy}, {seconds(duration)}{sure}, of {length_words(row['epochs'], row['steps'])}; {made}"
    return [("forecast", words), *((f"forecast, {each['name']}", cost_words(each)) for each in costs)]


def cost_words(row: Row) -> str:
    """Return an amount of money or carbon with its interval and its factor."""
    if row["amount"] is None:
        return "not known"
    low, high = row["amount_p2_5"], row["amount_p97_5"]
    sure = "" if low is None or high is None else f" (95 %: {low:.4g} to {high:.4g})"
    pue = f", PUE {row['pue']:g}" if row["pue"] else ", GPUs only"
    factor = f"{row['factor']:.6g} {row['factor_unit']}"
    return f"{row['amount']:.4g} {row['unit']}{sure} at {factor}{pue}; source: {row['source']}"
