"""The fuzzer's targets, over messages with something wrong in them. `make fuzz` goes on where this ends."""

from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.archive.seals.verifier import seal_of
from tests import hostile
from tests.fuzz import extremes, targets
from zeus_stream.protocol import codec


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_understood_or_malformed(data: bytes) -> None:
    targets.decode(data)


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(0, 10**30), st.binary(min_size=32, max_size=32))
def test_a_statement_that_others_hand_over_has_a_seal_that_does_not_hold_or_none(
    text: str, number: int, made_up: bytes
) -> None:
    assert seal_of(text) is None
    word = f"zeus-seal:{UUID(int=1)}:{number}:{made_up.hex()}:{number}:{made_up.hex()}:{made_up.hex() * 2}"
    seal = seal_of(text + word)
    assert seal is not None
    assert not seal.holds


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_any_message_with_something_wrong_in_it_is_understood_or_malformed(seed: int) -> None:
    rng = Random(seed)
    for message in (hostile.said(rng), hostile.commanded(rng), hostile.logged(rng), hostile.replied(rng)):
        targets.decode(hostile.spoilt(rng, codec.encode(message)))


@pytest.mark.parametrize("seed", [0, pytest.param(751_111, id="steps whose numbers add up to over 2**53")])
def test_any_field_may_have_the_least_or_the_most_that_it_may_have(tmp_path: Path, seed: int) -> None:
    """Interpreted, shown, stored, replayed, reported: `extremes` has each of it. `make fuzz` goes on."""
    assert extremes.play(seed, tmp_path, read=seed == 0) == []
