import io

from zeus_stream.protocol.queries import Status
from zeus_stream.reports.status_screen import StatusView, print_view, view

GPU = {
    "host": "gpu7", "index": 0, "name": "NVIDIA A40", "gpu": "GPU-a", "power_w": 163.3, "limit_w": 200.0,
    "found_limit_w": 300.0, "utilization_percent": 81, "temperature_c": 54, "step_j": 4.138, "run": "r",
    "gone": None,
}  # fmt: skip
RUN = {
    "run": "r", "job": "train", "ranks": 1, "steps": 1683, "steps_per_s": 43.9, "energy_j": 13049.0,
    "trials": 4, "chosen_w": 200.0, "chosen_mhz": None, "applied": True, "reason": "cost:0.5",
    "again": False, "saved_j": 1772.0,
}  # fmt: skip
COLLECTOR = Status((("collector", "host", "gpu7"), ("collector", "observes only", "no")))
ANALYZER = Status(
    (
        ("analyzer", "selector", "cost:0.5"),
        ("collector gpu7:5600", "connected", "yes"),
        ("collector gpu7:5600", "trouble", "none"),
        ("collector gpu7:5600", "host", "gpu7"),
        ("collector gpu7:5600", "behind", "3 frames"),
    )
)


def shown(screen: StatusView) -> list[str]:
    out = io.StringIO()
    print_view(screen, out)
    return out.getvalue().splitlines()


def test_a_screen_has_gpus_runs_and_services_and_fits_80_columns() -> None:
    found = {"collector": COLLECTOR, "analyzer": ANALYZER}
    lines = shown(view(found, {}, {"gpus": [GPU], "runs": [RUN], "gaps": []}))
    text = " ".join(" ".join(lines).split())
    assert "gpu7:0 NVIDIA A40 163.3 200 of 300 81 54 4.138 r" in text
    assert "r train 200 W chosen 1683 43.9 13,049 1,772" in text
    assert "follows gpu7 connected 3 frames" in text
    assert "Nothing is missing from the archive." in text
    assert max(map(len, lines)) <= 80


def test_what_is_not_known_is_a_dash_and_never_0() -> None:
    unknown = GPU | dict.fromkeys(("power_w", "limit_w", "utilization_percent", "step_j", "run"))
    (gpu,) = view({}, {}, {"gpus": [unknown]}).gpus
    assert (gpu.power_w, gpu.step_j, gpu.run) == (None, None, None)
    (line,) = [line for line in shown(view({}, {}, {"gpus": [unknown]})) if "gpu7:0" in line]
    assert line.split()[3:] == ["-", "-", "-", "54", "-", "-"]


def test_the_phase_of_a_search_is_in_words() -> None:
    def phase(**more: object) -> str:
        (run,) = view({}, {}, {"runs": [RUN | more]}).runs
        return run.phase

    assert phase(trials=None, chosen_w=None, reason=None) == "waiting for steps"
    assert phase(trials=2, chosen_w=None, reason=None) == "measuring limit 3"
    assert phase(again=True) == "measuring limit 5"
    assert phase(applied=False) == "200 W would be chosen"
    assert phase(chosen_w=None, reason="no permission") == "no limit: no permission"


def test_a_process_that_does_not_answer_is_shown() -> None:
    screen = view({"collector": COLLECTOR}, {"analyzer": "analyzer: did not answer."}, {})
    assert [(each.name, each.state) for each in screen.services] == [
        ("collector", "answers, gpu7"),
        ("analyzer", "does not answer"),
    ]
