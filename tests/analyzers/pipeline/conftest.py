import pytest

from analyzers.pipeline import chosen_plans
from analyzers.pipeline.plan import FrequencyPlan, make_plans

_made: dict[str, tuple[FrequencyPlan, ...]] = {}


@pytest.fixture(autouse=True)
def _equal_plans_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the plans of a graph and a profile, which follow from them alone: many tests play one pipeline."""

    def kept(*of: object, **more: object) -> tuple[FrequencyPlan, ...]:
        key = repr((of, more))
        if key not in _made:
            _made[key] = make_plans(*of, **more)  # type: ignore[arg-type]
        return _made[key]

    monkeypatch.setattr(chosen_plans, "make_plans", kept)
