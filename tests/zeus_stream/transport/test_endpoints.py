from pathlib import Path

import pytest

from zeus_stream.errors import SettingsError
from zeus_stream.paths import Places
from zeus_stream.transport import endpoints, keys


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gpu7:5600", ("gpu7", 5600)),
        ("tcp://127.0.0.1:1", ("127.0.0.1", 1)),
        ("[fe80::7]:5600", ("[fe80::7]", 5600)),
    ],
)
def test_an_address_is_a_host_and_the_first_of_three_ports(text: str, address: tuple[str, int]) -> None:
    assert endpoints.parse(text) == address


@pytest.mark.parametrize("text", ["", "gpu7", ":5600", "gpu7:", "gpu7:x", "gpu7:0", "gpu7:65534", "gpu7:-1"])
def test_what_is_no_address_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(SettingsError, match="expected HOST:PORT"):
        endpoints.parse(text)


def test_a_source_is_a_directory_or_an_address_with_its_key(tmp_path: Path) -> None:
    assert endpoints.source("/run/zeus-stream", tmp_path) == Places(
        Path("/run/zeus-stream"), Path("/run/zeus-stream")
    )
    issued = keys.create(tmp_path, "anna", ["follow"], "gpu7", keys.new_keys())
    (tmp_path / "servers").mkdir()
    issued.rename(tmp_path / "servers" / "gpu7.lan:5600.key")
    there = endpoints.source("gpu7.lan:5600", tmp_path)
    assert isinstance(there, endpoints.Distant)
    assert there.ticket.host == "gpu7"
    assert [door.address for door in (there.feed, there.control, there.query)] == [
        "tcp://gpu7.lan:5600",
        "tcp://gpu7.lan:5601",
        "tcp://gpu7.lan:5602",
    ]
