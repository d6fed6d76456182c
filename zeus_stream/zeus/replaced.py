"""Names of Zeus that zeus-stream replaces: each imports, and its first use says what to use."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from zeus_stream.zeus.exception import ZeusBaseError

_PLAYS = "`zeus-stream simulate` plays the same traces with both policies (docs/how-to/simulate-jobs.md)."
_POLICIES = "BatchSizeOptimizer PowerLimitOptimizer PruningGTSBatchSizeOptimizer JITPowerLimitOptimizer"


class ReplacedError(ZeusBaseError):
    """A name of Zeus was used that has another form here. The sentence names it."""


class _Replaced(type):
    """The kind of class that stands for such a name: a use of the class itself raises as well."""

    cure: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ReplacedError(f"{cls.__name__}: could not be used: zeus-stream has another form. {cls.cure}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # what pickle, inspect and dataclasses look for
            raise AttributeError(name)
        return cls()


def replaced(name: str, cure: str) -> Any:
    """Return a class of Zeus's name that may be imported and subclassed, and names the cure when used."""
    return _Replaced(name, (), {"cure": cure})


def add_modules() -> None:
    """Let Zeus's modules be imported that have no file here."""
    _add("_legacy", "", _PLAYS)
    _add("_legacy.job", "Job", _PLAYS)
    _add("_legacy.policy", _POLICIES, _PLAYS)
    _add("_legacy.policy.optimizer", _POLICIES, _PLAYS)
    _add("_legacy.simulate", "Simulator HistoryEntry", _PLAYS)
    _add(
        "metric",
        "Metric EnergyHistogram EnergyCumulativeCounter PowerGauge",
        "Run `zeus-stream metrics`: it serves the energy and power of every run, GPU and named window to"
        " Prometheus (docs/how-to/metrics.md).",
    )
    _add(
        "monitor.carbon",
        "CarbonIntensityProvider ElectrictyMapsClient CarbonEmissionMeasurement CarbonEmissionMonitor"
        " ZeusCarbonIntensityHTTPError ZeusCarbonIntensityNotFoundError",
        "Import the intensity with `zeus-stream signals`: `zeus-stream report` and SQL then have the carbon"
        " of every run and window (docs/how-to/costs-and-carbon.md).",
    )
    _add(
        "monitor.power_streaming",
        "PowerStreamingClient PowerReadings CpuPowerReading",
        "One analyzer follows all hosts: `zeus-stream top` and `zeus-stream web` show them live, and"
        " `PowerMonitor` reads their power (docs/how-to/watch-live.md).",
    )
    _add(
        "monitor.price",
        "ElectricityPriceProvider OpenEIClient EnergyCostMeasurement EnergyCostMonitor"
        " ZeusElectricityPriceHTTPError ZeusElectricityPriceNotFoundError",
        "Import the price with `zeus-stream signals`: `zeus-stream report` and SQL then have the cost of"
        " every run and window (docs/how-to/costs-and-carbon.md).",
    )
    _add(
        "optimizer.pipeline_frequency",
        "PipelineFrequencyOptimizer",
        "Mark each instruction with `zeus_stream.pipeline(stage=, stages=, micro_batches=).instruction(kind,"
        " micro_batch)`; no server is needed (docs/how-to/pipeline.md).",
    )
    _add(
        "profile",
        "measure profile_parameters profile_measurement_duration profile_cooldown_duration TrialResult"
        " SweepResult SweepReport",
        "Put `with zeus_stream.window('name') as w:` around the calls: short windows have bounds that show"
        " when they are long enough (docs/how-to/measure-a-script.md).",
    )
    _add(
        "utils.lat_lon",
        "get_ip_lat_long",
        "No request leaves the host; import the carbon intensity of your region with `zeus-stream signals`"
        " (docs/how-to/costs-and-carbon.md).",
    )
    _add(
        "utils.zeusd",
        "ZeusdConfig ZeusdClient",
        "`zeus-stream collect` as root is the process with the privilege to set limits; scripts need none"
        " (docs/how-to/production.md).",
    )


def _add(place: str, names: str, cure: str) -> None:
    """Add a module. Its errors may be caught; each other name says when used what to use instead."""
    module = ModuleType(f"zeus_stream.zeus.{place}", cure)
    for name in names.split():
        error = type(name, (ZeusBaseError,), {"__doc__": "An error of Zeus. Nothing raises it here."})
        setattr(module, name, error if name.endswith("Error") else replaced(name, cure))
    sys.modules[module.__name__] = module
    parent, _, last = module.__name__.rpartition(".")
    setattr(import_module(parent), last, module)
