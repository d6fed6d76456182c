"""Who is answered, and with which headers."""

import stat
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.types import ASGIApp

from tests.zeus_stream.screens.web.asking import Answered, ask
from tests.zeus_stream.screens.web.conftest import TOKEN
from zeus_stream.cli.screens.archive_source import ArchiveSource
from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.screens.web.access.security import HEADERS, MOST_WRONG, Credentials, Verdict, WebSecurity
from zeus_stream.screens.web.access.token_file import read_job_keys, read_token
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.server import Listening, address_of
from zeus_stream.screens.web.source import Source

pytestmark = pytest.mark.anyio
TEAM = "a-token-of-one-team-for-tests"


def shown(
    *,
    host: str = "localhost:1",
    token: str | None = None,
    bearer: str | None = None,
    cookie: str | None = None,
) -> Credentials:
    return Credentials(host=host, token=token, bearer=bearer, cookie=cookie)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        pytest.param(shown(), "no token", id="a request without token is not answered"),
        pytest.param(shown(token=TOKEN), "log in", id="the token of the address becomes a cookie"),
        pytest.param(shown(bearer=TOKEN), "granted", id="programs send a header"),
        pytest.param(shown(cookie=TOKEN), "granted", id="browsers send the cookie"),
        pytest.param(shown(token=TOKEN + "x"), "wrong token", id="a longer token is wrong"),
        pytest.param(shown(bearer=TOKEN[:-1]), "wrong token", id="a shorter token is wrong"),
        pytest.param(shown(bearer="é"), "wrong token", id="a token need not be ASCII to be wrong"),
        pytest.param(shown(cookie="old"), "no token", id="a cookie of an earlier token is no guess"),
        pytest.param(shown(host="evil.example", cookie=TOKEN), "wrong host", id="DNS rebinding is refused"),
        pytest.param(shown(host="localhost.evil.example", cookie=TOKEN), "wrong host", id="so is a suffix"),
        pytest.param(shown(host="", cookie=TOKEN), "wrong host", id="a request has to name a host"),
        pytest.param(shown(host="[::1]:8466", cookie=TOKEN), "granted", id="loopback has an IPv6 name"),
        pytest.param(
            shown(host="LOCALHOST.", cookie=TOKEN), "granted", id="case and a final dot do not matter"
        ),
    ],
)
def test_a_request_is_judged_by_host_and_token(given: Credentials, verdict: Verdict) -> None:
    gatekeeper = WebSecurity(TOKEN, frozenset(("localhost", "127.0.0.1", "[::1]")))
    assert gatekeeper.judge(given, 0.0) == verdict


def test_wrong_tokens_are_counted_for_a_minute_and_never_lock_the_owner_out() -> None:
    gatekeeper = WebSecurity(TOKEN, frozenset(("localhost",)))
    verdicts = [gatekeeper.judge(shown(bearer=f"guess {n}"), float(n)) for n in range(MOST_WRONG + 5)]
    assert verdicts == ["wrong token"] * MOST_WRONG + ["too many"] * 5
    assert gatekeeper.judge(shown(bearer=TOKEN), 15.0) == "granted"
    assert gatekeeper.judge(shown(bearer="guess"), 59.0) == "too many"
    assert gatekeeper.judge(shown(bearer="guess"), 61.0) == "wrong token"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a file with a key of the runs of one job."""
    file = tmp_path / "web.keys"
    file.write_text(f'[team]\ntoken = "{TEAM}"\njobs = ["tra*"]\n')
    file.chmod(0o600)
    return file


async def test_a_key_of_some_jobs_asks_sql_about_them_and_nothing_else(
    known: ArchiveSource, keys: Path
) -> None:
    gatekeeper = WebSecurity(TOKEN, frozenset(("localhost",)), read_job_keys(keys))
    app = build(Site(source=Source(known.ask), feed=None), gatekeeper)

    async def asked(address: str, token: str = TEAM) -> Answered:
        return await ask(app, address, authorization=f"Bearer {token}")

    runs = "/api/sql?sql=SELECT%20run%20FROM%20runs"
    assert [row["run"] for row in (await asked(runs)).json()["rows"]] == ["run-1"]
    assert len((await asked(runs, TOKEN)).json()["rows"]) == 2
    table = pa.ipc.open_stream((await asked(f"{runs}&format=arrow")).body).read_all()
    assert table["run"].to_pylist() == ["run-1"]
    refused = await asked("/api/sql?sql=FROM%20readings")
    assert refused.status == 400
    assert "readings is not of single jobs. Ask one SELECT on" in refused.json()["error"]
    for address in ("/", "/runs/run-1", "/sql?sql=SELECT%201", "/api/power", "/api/now", "/metrics"):
        assert (await asked(address)).status == 403
    assert (await asked(runs, TEAM + "x")).status == 401
    assert (await ask(app, runs, authorization=f"Bearer {TEAM}", host="evil.example")).status == 403
    assert (await ask(app, f"{runs}&token={TEAM}")).status == 401, "addresses are logged by proxies"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[team]\ntoken = "short"\njobs = ["a"]', "length >= 24"),
        (f'[team]\ntoken = "{"x" * 24}"', "missing required field `jobs`"),
        (f'[team]\ntoken = "{"x" * 24}"\njobs = []', "length >= 1"),
        (f'[team]\ntoken = "{"x" * 24}"\njobs = ["a"]\nrole = "all"', "unknown field `role`"),
        ("[team", "Expected ']'"),
    ],
)
def test_keys_that_cannot_be_read_are_a_sentence(keys: Path, text: str, says: str) -> None:
    keys.write_text(text)
    with pytest.raises(StorageError, match=rf"could not be used as keys: .*{says}.*Write a table for each"):
        read_job_keys(keys)
    keys.chmod(0o644)
    with pytest.raises(StorageError, match="other users can read"):
        read_job_keys(keys)
    with pytest.raises(StorageError, match=r"No such file.*Give a file that only this user"):
        read_job_keys(keys.with_name("none"))


async def test_ten_wrong_tokens_are_followed_by_429(app: ASGIApp) -> None:
    answers = [await ask(app, "/", authorization="Bearer no") for _ in range(MOST_WRONG + 1)]
    assert [answer.status for answer in answers] == [401] * MOST_WRONG + [429]
    assert answers[-1].header("retry-after") == "60"


async def test_the_token_of_the_address_becomes_a_cookie_for_the_same_page(app: ASGIApp) -> None:
    answer = await ask(app, f"/sql?sql=SELECT%201&token={TOKEN}")
    assert answer.status == 303
    assert answer.header("location") == "./sql?sql=SELECT+1"
    cookie = answer.header("set-cookie") or ""
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    again = await ask(app, "/sql", cookie=cookie.partition(";")[0])
    assert again.status == 200
    assert TOKEN not in again.text


@pytest.mark.parametrize("address", ["/", "/nowhere", "/static/nothing.js", "/-/healthy"])
async def test_every_answer_has_the_security_headers(app: ASGIApp, address: str) -> None:
    for answer in (await ask(app, address), await ask(app, address, authorization=f"Bearer {TOKEN}")):
        given = dict(answer.headers)
        assert {name: given.get(name.lower()) for name in HEADERS} == dict(HEADERS)
        assert not any(name.startswith("access-control") for name in given)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_there_is_no_method_that_could_change_anything(app: ASGIApp, method: str) -> None:
    for address in ("/", "/sql", "/api/sql", "/runs/run-1"):
        answer = await ask(app, address, method=method, authorization=f"Bearer {TOKEN}")
        assert answer.status == 405


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"address": "0.0.0.0:8466", "token": "t"}, "in clear", id="the network needs TLS"),
        pytest.param({"address": "gpu-host:8466", "token": "t"}, "in clear", id="so does a name"),
        pytest.param({"address": "127.0.0.1:1", "token": None}, "without a token", id="a port needs a token"),
        pytest.param({"address": "8466", "token": "t"}, "no HOST:PORT", id="an address has a host"),
        pytest.param({"address": "localhost:x", "token": "t"}, "no HOST:PORT", id="a port is a number"),
        pytest.param({"address": "localhost:1", "token": "t", "tls_cert": Path("c")}, "both", id="a key too"),
    ],
)
def test_an_unsafe_address_is_refused_in_a_sentence(given: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Listening(**given).host  # type: ignore[arg-type]  # noqa: B018  (it is checked there)


def test_a_proxy_or_tls_allows_any_address() -> None:
    behind = Listening(address="0.0.0.0:1", token="t", behind_proxy=True, host_names=("gpus.example",))  # noqa: S106
    assert behind.allowed_hosts() >= {"gpus.example", "localhost"}
    assert address_of(behind) == "http://localhost:1/?token=t"
    assert Listening(address="unix:/run/x", token=None).allowed_hosts() == frozenset()


def test_the_token_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "web.token"
    token = read_token(path)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == token
    path.chmod(0o640)
    with pytest.raises(StorageError, match="other users can read"):
        read_token(path)


def test_a_token_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not be used as the token"):
        read_token(tmp_path / "file" / "web.token")
    (tmp_path / "short").write_text("abc")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(StorageError, match="too short"):
        read_token(tmp_path / "short")
