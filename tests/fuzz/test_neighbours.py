"""Worlds with a neighbour, a few of each kind. `make fuzz` goes on where this ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import neighbours


@pytest.mark.parametrize("kind", neighbours.KINDS)
@settings(deadline=None, max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_what_is_ours_is_the_same_as_without_a_neighbour(kind: neighbours.Kind, seed: int) -> None:
    assert neighbours.play(seed, kind) == []


def test_who_comes_after_a_user_with_the_same_names_has_the_same_decisions() -> None:
    """Only the names tell the user: ``run (user 1001)``."""
    second = [str(row).replace(f" (user {neighbours.OURS})", "") for row in neighbours.alone("user before")]
    assert second == [str(row) for row in neighbours.alone()]
