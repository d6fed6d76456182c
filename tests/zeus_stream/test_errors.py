"""The text of an error, of which another program may have written a part."""

import pytest

from zeus_stream.errors import RefusedError, StorageError, ZeusStreamError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RefusedError("run \x1b[2J\x07evil: refused.\r"), "run ?[2J?evil: refused.?"),
        (StorageError("µm\tand\nlines stay"), "µm\tand\nlines stay"),
        (ZeusStreamError("\x9b31m and \udc80"), "?31m and ?"),
    ],
)
def test_the_text_of_an_error_has_no_control_character(error: ZeusStreamError, text: str) -> None:
    assert str(error) == text
    assert f"{error}" == text
