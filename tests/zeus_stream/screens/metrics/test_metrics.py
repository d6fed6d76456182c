"""Snapshots as families, and their text as prometheus_client reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from analyzers.live.live_runs import StepsByJob
from tests.zeus_stream.screens.metrics.snapshots import GPU, HOST, RUN, SEARCH, of_analyzer, of_collector
from zeus_stream.protocol.snapshots import MAX_JOB_ROWS
from zeus_stream.screens.metrics.job_metrics import MAX_JOBS, OTHER, JobMetrics, step_families
from zeus_stream.screens.metrics.metrics import (
    Family,
    MetricSample,
    gpu_families,
    service_families,
    up_family,
)
from zeus_stream.screens.metrics.prometheus import text

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(families: list[Family]) -> Found:
    """Return the samples that prometheus_client finds in the text."""
    found: Found = {}
    for family in text_string_to_metric_families(text(families)):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "one series twice"
            found[key] = sample.value
    return found


def value(found: Found, name: str, **labels: str) -> float | None:
    values = [
        each for (known, given), each in found.items() if known == name and set(labels.items()) <= given
    ]
    return values[0] if len(values) == 1 else None


def test_a_gpu_has_its_figures_in_base_units() -> None:
    found = parsed(gpu_families(of_collector()))
    gpu = {"host": "alpha", "gpu": "0", "gpu_uuid": "GPU-a"}
    assert value(found, "zeus_stream_gpu_energy_joules_total", **gpu) == 12345.678
    assert value(found, "zeus_stream_gpu_power_watts", **gpu) == 162.5
    assert value(found, "zeus_stream_gpu_temperature_celsius", **gpu) == 55
    assert value(found, "zeus_stream_gpu_utilization_ratio", **gpu) == 0.98
    limits = {
        state: value(found, "zeus_stream_gpu_power_limit_watts", state=state, **gpu)
        for state in ("enforced", "requested", "found", "least", "most")
    }
    assert limits == {"enforced": 175, "requested": 175, "found": 250, "least": 100, "most": 300}
    assert value(found, "zeus_stream_gpu_info", model="Model X", driver="1.0", kind="counter", **gpu) == 1
    part = {"host": "alpha", "part": "CPU-alpha-package-0"}
    assert value(found, "zeus_stream_host_part_energy_joules_total", **part) == 5


def test_what_is_not_known_has_no_sample() -> None:
    found = parsed(gpu_families(of_collector(replace(GPU, energy_mj=None, utilization_pct=None))))
    assert value(found, "zeus_stream_gpu_energy_joules_total") is None
    assert value(found, "zeus_stream_gpu_utilization_ratio") is None
    assert value(found, "zeus_stream_gpu_info", kind="power") == 1


def test_a_silent_gpu_repeats_no_old_reading_and_says_that_it_is_down() -> None:
    found = parsed(gpu_families(of_collector(replace(GPU, state="silent")), "upper"))
    assert {name for name, _ in found} == {
        "zeus_stream_gpu_info",
        "zeus_stream_gpu_up",
        "zeus_stream_host_part_energy_joules_total",
        "zeus_stream_host_part_power_watts",
    }
    assert value(found, "zeus_stream_gpu_up") == 0


def test_dashboards_of_dcgm_exporter_find_their_names() -> None:
    found = parsed(gpu_families(of_collector(), "upper"))
    labels = {"gpu": "0", "UUID": "GPU-a", "device": "nvidia0", "modelName": "Model X", "Hostname": "alpha"}
    assert value(found, "DCGM_FI_DEV_POWER_USAGE", **labels) == 162.5
    # The parser of prometheus_client adds the suffix that dcgm-exporter's counter lacks.
    assert value(found, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total", **labels) == 12_345_678
    assert "\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{" in text(gpu_families(of_collector(), "upper"))
    assert value(found, "DCGM_FI_DEV_GPU_UTIL", **labels) == 98
    assert value(found, "DCGM_FI_DEV_SM_CLOCK", **labels) == 1380
    lower = parsed(gpu_families(of_collector(), "lower"))
    assert value(lower, "DCGM_FI_DEV_GPU_TEMP", hostname="alpha") == 55
    assert not [name for name, _ in parsed(gpu_families(of_collector())) if name.startswith("DCGM")]


def test_a_service_says_its_lag_gaps_commands_and_hosts() -> None:
    found = parsed([*service_families(of_analyzer()), up_family({"analyzer": True, "collector": False})])
    assert value(found, "zeus_stream_lag_seconds", process="analyzer") == 0.12
    assert value(found, "zeus_stream_gap_items_total", host="alpha", what="events") == 3
    assert value(found, "zeus_stream_host_up", host="alpha") == 1
    assert value(found, "zeus_stream_host_trouble", host="alpha") == 0
    driverless = replace(of_collector(), hosts=(replace(HOST, trouble="could not start NVML"),))
    assert value(parsed(service_families(driverless)), "zeus_stream_host_trouble", host="alpha") == 1
    assert value(found, "zeus_stream_up", process="collector") == 0
    assert (
        value(parsed(service_families(of_collector())), "zeus_stream_commands_total", outcome="applied") == 7
    )


def test_a_job_keeps_the_energy_of_runs_that_have_left_the_snapshot() -> None:
    jobs = JobMetrics(whole=True)
    assert jobs.take([RUN]) == []
    ended = replace(RUN, energy_j=1500.0, ended_wall_ns=1)
    assert jobs.take([ended]) == [ended]
    assert jobs.take([ended]) == []
    jobs.take([])
    jobs.take([replace(RUN, run="run-2", energy_j=10.0, search=None)])
    jobs.add_waste("asr", {"data wait": 5.0})
    found = parsed(jobs.families(of_analyzer()))
    assert value(found, "zeus_stream_job_energy_joules_total", training_job="asr") == 1510
    assert value(found, "zeus_stream_job_saved_joules", training_job="asr") == 412
    assert value(found, "zeus_stream_waste_joules_total", training_job="asr", cause="data wait") == 5
    assert value(found, "zeus_stream_run_info", run="run-1", phase="chosen", host="alpha") == 1
    assert value(found, "zeus_stream_run_step_duration_seconds", run="run-1") == 0.025


def test_an_exporter_that_starts_again_counts_no_joule_of_before() -> None:
    """Its counter fell to the whole energy of the open run: Prometheus added that to the rate."""
    jobs = JobMetrics()
    over = replace(RUN, run="over", ended_wall_ns=1)
    assert jobs.take([RUN, over]) == []
    assert (jobs.energy_j, jobs.saved_j) == ({"asr": 0}, {"asr": 824})
    jobs.take([replace(RUN, energy_j=1250.0)])
    assert jobs.energy_j == {"asr": 250}


def test_a_saving_may_shrink() -> None:
    jobs = JobMetrics(whole=True)
    jobs.take([RUN])
    jobs.take([replace(RUN, search=replace(SEARCH, saved_j=400.0))])
    assert jobs.saved_j == {"asr": 400}


def test_jobs_without_number_are_added_up_as_one() -> None:
    jobs = JobMetrics(whole=True)
    jobs.take([replace(RUN, run=f"run-{n}", job=f"job-{n}", energy_j=1.0) for n in range(MAX_JOBS + 7)])
    found = parsed(jobs.families(of_analyzer()))
    assert value(found, "zeus_stream_job_energy_joules_total", training_job=OTHER) == 7
    assert value(found, "zeus_stream_folded_runs_total") == 7
    assert sum(name == "zeus_stream_job_energy_joules_total" for name, _ in found) == MAX_JOBS + 1


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(0, 1e9)), max_size=30))
def test_counters_never_fall(readings: list[tuple[int, float | None]]) -> None:
    jobs, before = JobMetrics(whole=True), 0.0
    for number, energy_j in readings:
        jobs.take([replace(RUN, run=f"run-{number}", energy_j=energy_j)])
        assert jobs.energy_j["asr"] >= before
        before = jobs.energy_j["asr"]


@given(st.text(max_size=50), st.floats(allow_nan=False, allow_infinity=False))
def test_any_name_and_any_number_survive_the_text(name: str, number: float) -> None:
    name = name.replace("\x85", "").replace("\u2028", "").replace("\u2029", "")
    name = "".join(character for character in name if character.isprintable() or character == "\n")
    family = Family(
        name="a", kind="gauge", help="a\nb \\ c", samples=(MetricSample((("job", name),), number),)
    )
    assert parsed([family]) == {("a", frozenset({("job", name)})): number}


@given(st.lists(st.tuples(st.none() | st.floats(0, 1e13), st.floats(1e-9, 1e6)), max_size=30))
def test_histograms_of_steps_hold_each_step_in_the_bucket_of_its_power_of_two(
    steps: list[tuple[float | None, float]],
) -> None:
    made = StepsByJob()
    for joules, seconds in steps:
        made.add("asr", joules, seconds)
    found = parsed(step_families(made.rows()))
    measured = [joules for joules, _ in steps if joules is not None]
    for name, values in (("energy_joules", measured), ("duration_seconds", [s for _, s in steps])):
        full = f"zeus_stream_step_{name}"
        buckets = {
            float(dict(labels)["le"]): count
            for (known, labels), count in found.items()
            if known == f"{full}_bucket"
        }
        assert value(found, f"{full}_count", training_job="asr") == (len(values) or None)
        for bound, count in buckets.items():
            assert count == sum(each <= bound or bound == 2.0**40 for each in values)
        if values:
            assert value(found, f"{full}_sum", training_job="asr") == pytest.approx(sum(values))


def test_steps_of_too_many_jobs_are_added_up() -> None:
    made = StepsByJob()
    for number in range(MAX_JOB_ROWS + 5):
        made.add(f"job-{number}", 1.0, 0.1)
    rows = made.rows()
    assert len(rows) == MAX_JOB_ROWS
    assert rows[-1].job == OTHER
    assert rows[-1].sum_j == 6.0
