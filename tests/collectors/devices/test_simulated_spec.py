import pytest

from collectors.devices.simulated_spec import Fault, parse
from collectors.devices.virtual_gpu import Kind
from zeus_stream.errors import SettingsError


def test_a_plain_model_is_one_gpu_as_published() -> None:
    (spec,) = parse("simulated:v100")
    assert (spec.period_ms, spec.window_ms, spec.kind, spec.faults) == (20, 10, Kind.INTEGRATING, ())


def test_a_model_with_an_x_in_its_name_can_be_counted() -> None:
    assert [spec.key for spec in parse("simulated:rtx6000x2+rtx6000+p100x1")] == [*["rtx6000"] * 3, "p100"]


def test_groups_add_up_and_options_belong_to_their_group() -> None:
    first, second, third = parse("simulated:a40x2,noise=0.02,set_ms=50+v100,power_only=1,fault=lost@5-8")
    assert first is second
    assert (first.model.name, first.noise, first.set_ms, first.power_only) == ("NVIDIA A40", 0.02, 50, False)
    assert (third.model.name, third.noise, third.power_only) == ("Tesla V100-PCIE-16GB", 0, True)
    assert third.faults == (Fault("lost", 5, 8),)


def test_every_option_is_taken() -> None:
    (spec,) = parse(
        "simulated:a40,period_ms=50,kind=boxcar,window_ms=20,jitter_ms=1.5,phase_ms=7,noise=0.1,seed=9,set_ms=3,"
        "power_only=0,fault=timeout@1.5,fault=permission,fault=reset@10"
    )
    assert (spec.period_ms, spec.kind, spec.window_ms, spec.jitter_ms) == (50, Kind.BOXCAR, 20, 1.5)
    assert (spec.phase_ms, spec.noise, spec.seed, spec.set_ms, spec.power_only) == (7, 0.1, 9, 3, False)
    assert spec.faults == (Fault("timeout", 1.5), Fault("permission"), Fault("reset", 10))


def test_a_slower_gpu_takes_as_many_times_as_long_at_every_limit_and_draws_the_same() -> None:
    plain, slow = parse("simulated:v100+v100,slower=1.1")
    assert plain.model.workloads.keys() == slow.model.workloads.keys()
    for name, workload in plain.model.workloads.items():
        for limit_mw in (250_000, 150_000, 100_000):
            slowdown = slow.model.workloads[name].slowdown(limit_mw)
            assert slowdown == pytest.approx(1.1 * workload.slowdown(limit_mw))
            assert slow.model.workloads[name].power_mw(limit_mw) == workload.power_mw(limit_mw)


@pytest.mark.parametrize(
    ("text", "window_ms"),
    [("a40,kind=boxcar", 25), ("v100,kind=boxcar", 5), ("a40,period_ms=20", 20), ("v100,window_ms=20", 20)],
)
def test_a_window_always_fits_into_its_period(text: str, window_ms: float) -> None:
    assert parse(f"simulated:{text}")[0].window_ms == window_ms


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("simulated:", "it is not simulated:MODELxCOUNT"),
        ("nvml", "it is not simulated:MODELxCOUNT"),
        ("simulated:tpu", "there is no model 'tpu'; models: v100, a40, p100, rtx6000, a100, h100"),
        ("simulated:v100x0", "'0' is not how many"),
        ("simulated:v100xmany", "'many' is not how many"),
        ("simulated:v100x", "'' is not how many"),
        ("simulated:v100x65", "more than 64 GPUs"),
        ("simulated:v100,colour=red", "there is no option 'colour'; options: period_ms, window_ms"),
        ("simulated:v100,noise=0.5", "noise cannot be '0.5'"),
        ("simulated:v100,noise=nan", "noise cannot be 'nan'"),
        ("simulated:v100,slower=0.9", "slower cannot be '0.9'"),
        ("simulated:v100,seed=x", "seed cannot be 'x'"),
        ("simulated:v100,power_only=yes", "power_only cannot be 'yes'"),
        ("simulated:v100,kind=bag", "kind cannot be 'bag'"),
        ("simulated:v100,jitter_ms=10", "jitter_ms has to be below half of period_ms"),
        ("simulated:v100,window_ms=21", "window_ms has to be within period_ms"),
        ("simulated:v100,fault=fire", "fault cannot be 'fire'"),
        ("simulated:v100,fault=lost@8-5", "fault cannot be 'lost@8-5'"),
        ("simulated:v100,fault=lost@soon", "fault cannot be 'lost@soon'"),
        ("simulated:v100,fault=hang@5", "fault cannot be 'hang@5'"),
    ],
)
def test_a_wrong_text_is_told_what_is_wrong_with_it_and_how_to_write_it(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert why in str(caught.value)
    assert "Write it like simulated:v100x4" in str(caught.value)


def test_uuids_are_the_same_next_time_and_different_by_model_seed_place_and_host() -> None:
    v100, a40, other = parse("simulated:v100+a40+v100,seed=1")
    assert v100.uuid(0, "a") == parse("simulated:v100")[0].uuid(0, "a")
    assert (
        len({v100.uuid(0, "a"), v100.uuid(1, "a"), a40.uuid(0, "a"), other.uuid(0, "a"), v100.uuid(0, "b")})
        == 5
    )
