"""When a temperature is stable."""

from zeus_stream.bench.energy_bench import SettledTemperature


def test_it_is_stable_once_it_stayed_for_the_whole_span() -> None:
    settled = SettledTemperature(span_s=10)
    looks = [settled.look(float(now_s), (80 - 5 * now_s, 40)) for now_s in range(6)]
    later = [settled.look(float(now_s), (55 + now_s % 2, 40)) for now_s in range(6, 20)]
    assert not any(looks)
    assert later.index(True) == 9  # 10 s after it was at 55 first


def test_it_is_never_stable_if_none_is_known_or_a_gpu_is_lost() -> None:
    settled = SettledTemperature(span_s=1)
    assert not any(settled.look(float(now_s), ()) for now_s in range(5))
    assert not settled.look(5.0, (40, 40))
    assert settled.look(6.0, (40, 40))
    assert not settled.look(7.0, (40,))
