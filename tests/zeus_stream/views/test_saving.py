"""Sentences of a saving: none claims what was not measured."""

import pytest

from zeus_stream.views.saving import saving_of_row

KEPT = {
    "power_limit_w": 300.0, "default_limit_w": 300.0, "applied": True, "saved_j": None, "steps_at_limit": 300,
    "reason": "best by cost:0.5, among 9 limits, 1 of them measured",
}  # fmt: skip


@pytest.mark.parametrize(
    ("energies", "words"),
    [
        ({300.0: 1.7}, "no better limit is known"),
        ({300.0: 1.7, 250.0: 1.785}, "none measured is better (the next takes 5.0 % more energy)"),
    ],
    ids=["no other was measured", "another was measured"],
)
def test_a_limit_is_called_the_best_only_if_another_was_measured(
    energies: dict[float, float], words: str
) -> None:
    trials = [{"power_limit_w": limit_w, "step_j": step_j} for limit_w, step_j in energies.items()]
    saving = saving_of_row(KEPT, trials)
    assert saving is not None
    assert saving.headline == f"kept 300 W: {words}"
    assert saving.effect == f"nothing: {words}"
