"""The endpoint over real HTTP."""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from zeus_stream.errors import SettingsError, UnreachableError
from zeus_stream.screens.metrics.endpoint import Endpoint, address_of


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), lambda: "a 1\n", TOKEN) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


TOKEN = "secret"  # noqa: S105  (of this test)
ANYWHERE = "0.0.0.0"  # noqa: S104  (it is what is refused)


def get(server: Endpoint, path: str, token: str | None = TOKEN, method: str = "GET") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}", method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode(), refused.headers["Content-Type"]


def test_metrics_are_text_of_prometheus(server: Endpoint) -> None:
    assert get(server, "/metrics?x=1") == (200, "a 1\n", "text/plain; version=0.0.4; charset=utf-8")


def test_without_the_token_nothing_is_shown(server: Endpoint) -> None:
    for token in (None, "", "secre", "secret2"):
        status, body, _ = get(server, "/metrics", token)
        assert status == 401
        assert "a 1" not in body


def test_other_paths_and_methods_do_nothing(server: Endpoint) -> None:
    assert get(server, "/etc/passwd")[0] == 404
    assert get(server, "/-/ready")[0] == 200
    assert get(server, "/metrics", method="POST")[0] == 501


def test_an_address_in_use_is_a_sentence(server: Endpoint) -> None:
    port = server.server_address[1]
    Endpoint.allow_reuse_address = False
    try:
        with pytest.raises(UnreachableError, match=rf"could not listen at 127.0.0.1:{port}: .* Name another"):
            Endpoint(("127.0.0.1", int(port)), str, None)
    finally:
        Endpoint.allow_reuse_address = True


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="expected HOST:PORT"):
        address_of(text, None)


def test_other_hosts_need_a_token() -> None:
    with pytest.raises(SettingsError, match=r"Give a token with --token-file, or listen at 127\.0\.0\.1"):
        address_of(f"{ANYWHERE}:9464", None)
    assert address_of(f"{ANYWHERE}:9464", TOKEN) == (ANYWHERE, 9464)
    assert address_of("[::1]:9464", None) == ("::1", 9464)
