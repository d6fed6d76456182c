"""Plots of the demo: what each power limit trades, in the terminal and as a picture with power over time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotext
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

ETA = 0.5
"""Weight of energy in the cost; the rest is the weight of time."""
FOUND, CHOSEN, OTHERS = "#6b7280", "#0d9488", "#3b82f6"
Row = Mapping[str, Any]


def note(limit_w: float, saving: Row) -> str:
    """Return what is special about a limit, for the plots."""
    if limit_w == saving["power_limit_w"]:
        return "chosen"
    return "as found" if limit_w == saving["default_limit_w"] else ""


def terminal_plot(trials: Sequence[Row], saving: Row, width: int) -> str:
    """Return time against energy of a step, a point a limit."""
    times = [trial["step_ms"] for trial in trials]
    plot = plotext.figure
    plot.clear()
    plot.theme("colorless")
    plot.plot_size(width, 18)
    plot.title("energy of a step (J) against its time (ms), at each power limit")
    plot.ruler("x").lim(min(times) * 0.99, max(times) + (max(times) - min(times)) * 0.25)
    for trial in trials:
        text = f"● {trial['power_limit_w']:g} W {note(trial['power_limit_w'], saving)}"
        plot.draw(plot.text(trial["step_ms"], trial["energy_per_step_j"], text))
    return str(plot.build().string(colorless=True))


def save_picture(
    trials: Sequence[Row], saving: Row, spans: Sequence[Row], power: Sequence[Row], path: Path
) -> None:
    """Save what each limit trades, and power over time, as a picture."""
    layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12, hspace=0.05)
    figure = Figure(figsize=(10, 7.6), dpi=150, layout=layout, facecolor="white")
    above, below = figure.subplots(2, 1, height_ratios=[1.4, 1])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
    draw_frontier(above, trials, saving)
    draw_power(below, spans, saving, power)
    figure.savefig(path)


def draw_frontier(axes: Axes, trials: Sequence[Row], saving: Row) -> None:
    by_limit = sorted(trials, key=lambda trial: trial["power_limit_w"])
    times = [trial["step_ms"] for trial in by_limit]
    energies = [trial["energy_per_step_j"] for trial in by_limit]
    axes.plot(times, energies, color=OTHERS, linewidth=1.2, alpha=0.5)
    for trial, step_ms, energy_j in zip(by_limit, times, energies, strict=True):
        limit_w = trial["power_limit_w"]
        word = note(limit_w, saving)
        colour = {"chosen": CHOSEN, "as found": FOUND}.get(word, OTHERS)
        axes.scatter(step_ms, energy_j, s=130 if word else 55, color=colour, zorder=3)
        axes.annotate(
            f"{limit_w:g} W {word}".rstrip(),
            (step_ms, energy_j),
            xytext=(9, 6),
            textcoords="offset points",
            color=colour,
            fontsize=12 if word else 10,
            fontweight="bold" if word else "normal",
        )
    axes.margins(x=0.12, y=0.12)
    draw_equal_cost(axes, trials, saving)
    axes.set_title(headline(saving), loc="left", fontsize=14, fontweight="bold")
    axes.set_xlabel("time of a step (ms)")
    axes.set_ylabel("energy of a step (J)")


def draw_equal_cost(axes: Axes, trials: Sequence[Row], saving: Row) -> None:
    """Draw where the cost, `ETA` x energy + (1 - ETA) x highest power x time, is that of the chosen limit."""
    best = next(trial for trial in trials if note(trial["power_limit_w"], saving) == "chosen")
    step_ms, energy_j = best["step_ms"], best["energy_per_step_j"]
    slope = -(best["cost_per_step_j"] - ETA * energy_j) / ETA / step_ms
    limits = axes.get_xlim(), axes.get_ylim()
    axes.axline((step_ms, energy_j), slope=slope, color=CHOSEN, linestyle=(0, (4, 4)), linewidth=1)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    text = "dashed: the same cost as the chosen limit;\nno limit is below the line"
    axes.text(0.99, 0.97, text, transform=axes.transAxes, ha="right", va="top", color=CHOSEN)


def headline(saving: Row) -> str:
    verb = "saves" if saving["applied"] else "would save"
    added = saving["time_added_percent"]
    return (
        f"{saving['power_limit_w']:g} W {verb} {saving['energy_saved_percent']:.0f} % of the energy"
        f" for {abs(added):.0f} % {'more' if added >= 0 else 'less'} time"
    )


def draw_power(axes: Axes, spans: Sequence[Row], saving: Row, power: Sequence[Row]) -> None:
    begin_ns = power[0]["t_ns"]
    seconds = [(row["t_ns"] - begin_ns) / 1e9 for row in power]
    axes.fill_between(seconds, [row["power_w"] for row in power], color=OTHERS, alpha=0.25, linewidth=0)
    axes.plot(seconds, [row["power_w"] for row in power], color=OTHERS, linewidth=1, label="power")
    axes.step(seconds, [row["limit_w"] for row in power], where="post", color="#111827", label="power limit")
    for measured in spans:
        span = [(measured[end] - begin_ns) / 1e9 for end in ("began_ns", "ended_ns")]
        is_chosen = note(measured["power_limit_w"], saving) == "chosen"
        axes.axvspan(*span, color=CHOSEN if is_chosen else "#fbbf24", alpha=0.22, linewidth=0)
    axes.axvspan(0, 0, color="#fbbf24", alpha=0.22, label="a limit is measured")
    axes.set_xlabel("seconds")
    axes.set_ylabel("watts")
    axes.set_ylim(0, None)
    axes.set_xlim(0, seconds[-1])
    axes.legend(loc="lower right", ncols=3, frameon=True, facecolor="white", edgecolor="none")
