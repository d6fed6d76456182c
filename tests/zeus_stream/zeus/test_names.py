"""Every name of Zeus's documents and examples imports, and works or says what replaces it."""

import importlib
import pickle
from pathlib import Path

import pytest

from zeus_stream.zeus.monitor import Measurement
from zeus_stream.zeus.optimizer.batch_size import JobSpec
from zeus_stream.zeus.replaced import ReplacedError
from zeus_stream.zeus.utils.lr_scaler import LinearScaler, SquareRootScaler
from zeus_stream.zeus.utils.metric import zeus_cost
from zeus_stream.zeus.utils.testing import ReplayZeusMonitor

ROOT = Path(__file__).parents[3]
WORK = {
    "callback": "Callback CallbackSet",
    "device": "get_gpus",
    "device.cpu": "get_current_cpu_index ZeusCPUInitError",
    "device.gpu": "get_gpus GPUs ZeusGPUInitError",
    "device.soc": "ZeusSoCInitError",
    "exception": "ZeusBaseError",
    "monitor": "Measurement PowerMonitor TemperatureMonitor ZeusMonitor",
    "monitor.carbon": "ZeusCarbonIntensityHTTPError ZeusCarbonIntensityNotFoundError",
    "monitor.energy": "Measurement ZeusMonitor",
    "monitor.power": "PowerMonitor",
    "monitor.price": "ZeusElectricityPriceHTTPError ZeusElectricityPriceNotFoundError",
    "monitor.temperature": "TemperatureMonitor",
    "optimizer.batch_size": "BatchSizeOptimizer JobSpec",
    "optimizer.power_limit": "Done Energy GlobalPowerLimitOptimizer MaxSlowdownConstraint OptimumSelector"
    " PowerLimitMeasurement Profiling Ready Time Warmup ZeusCost",
    "show_env": "show_env",
    "utils.env": "get_env",
    "utils.framework": "cupy_is_available get_rank get_world_size is_distributed jax_is_available"
    " sync_execution torch_is_available",
    "utils.lr_scaler": "LinearScaler SquareRootScaler",
    "utils.metric": "zeus_cost",
    "utils.testing": "ReplayZeusMonitor",
}
REPLACED = {
    "_legacy.job": "Job",
    "_legacy.policy": "BatchSizeOptimizer JITPowerLimitOptimizer PowerLimitOptimizer"
    " PruningGTSBatchSizeOptimizer",
    "_legacy.policy.optimizer": "JITPowerLimitOptimizer PruningGTSBatchSizeOptimizer",
    "_legacy.simulate": "HistoryEntry Simulator",
    "device": "get_cpus get_soc",
    "device.cpu": "get_cpus",
    "device.soc": "get_soc",
    "metric": "EnergyCumulativeCounter EnergyHistogram Metric PowerGauge",
    "monitor.carbon": "CarbonEmissionMeasurement CarbonEmissionMonitor CarbonIntensityProvider"
    " ElectrictyMapsClient",
    "monitor.power_streaming": "CpuPowerReading PowerReadings PowerStreamingClient",
    "monitor.price": "ElectricityPriceProvider EnergyCostMeasurement EnergyCostMonitor OpenEIClient",
    "optimizer.pipeline_frequency": "PipelineFrequencyOptimizer",
    "profile": "SweepReport SweepResult TrialResult measure profile_cooldown_duration"
    " profile_measurement_duration profile_parameters",
    "utils.lat_lon": "get_ip_lat_long",
    "utils.zeusd": "ZeusdClient ZeusdConfig",
}


def names(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(module, name) for module, found in table.items() for name in found.split()]


@pytest.mark.parametrize(("module", "name"), names(WORK))
def test_a_name_that_works_is_there(module: str, name: str) -> None:
    found = getattr(importlib.import_module(f"zeus_stream.zeus.{module}"), name)
    assert found.__doc__


@pytest.mark.parametrize(("module", "name"), names(REPLACED))
def test_a_name_that_has_another_form_says_which(module: str, name: str) -> None:
    found = getattr(importlib.import_module(f"zeus_stream.zeus.{module}"), name)
    with pytest.raises(ReplacedError, match=rf"^{name}: could not be used: .+\.$") as raised:
        found(0, key="value")
    page = str(raised.value).rpartition("(")[2].rstrip(").")
    assert (ROOT / page).is_file()
    with pytest.raises(ReplacedError):
        found.any_method()


def test_a_measurement_travels_between_processes() -> None:
    measured = Measurement(0.5, {0: 12.0})
    assert pickle.loads(pickle.dumps(measured)) == measured  # noqa: S301


def test_a_log_is_replayed_window_by_window(tmp_path: Path) -> None:
    log = tmp_path / "windows.csv"
    log.write_text(
        "start_time,window_name,elapsed_time,gpu0_energy,gpu2_energy\n1,epoch,0.5,12.5,7\n2,test,1,3,4\n"
    )
    monitor = ReplayZeusMonitor(log_file=log)
    assert monitor.gpu_indices == [0, 2]
    monitor.begin_window("epoch")
    with pytest.raises(ValueError, match="already exists"):
        monitor.begin_window("epoch")
    assert monitor.end_window("epoch") == Measurement(0.5, {0: 12.5, 2: 7.0})
    monitor.begin_window("other")
    with pytest.raises(ValueError, match="expecting test, not other"):
        monitor.end_window("other")
    monitor.begin_window("late")
    with pytest.raises(ValueError, match="No more lines"):
        monitor.end_window("late")


def test_rules_and_costs_are_those_of_the_paper() -> None:
    assert SquareRootScaler(bs=32, lr=0.1).compute_lr(128) == pytest.approx(0.2)
    assert LinearScaler(bs=32, lr=0.1).compute_lr(128) == pytest.approx(0.4)
    assert zeus_cost(energy=100.0, time=2.0, eta_knob=0.5, max_power=300) == pytest.approx(350.0)


def test_a_job_has_the_defaults_of_zeus() -> None:
    job = JobSpec(job_id_prefix="nightly", batch_sizes=[16, 32], default_batch_size=32)
    assert (job.eta_knob, job.beta_knob, job.target_metric, job.max_epochs) == (0.5, 2.0, 0.5, 100)
