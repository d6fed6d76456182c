"""A lake whose files are in an S3 bucket: refusals, a full store and one that is away are one sentence."""

import pytest

from analyzers.lake import catalog, keeper
from analyzers.lake.object_store import secret
from tests.analyzers.archives import BOOTED_NS, frames
from tests.scale.held_part import SETTINGS, take
from tests.scale.servers import ObjectStore
from tests.scale.test_lake import ask
from zeus_stream.errors import SettingsError, StorageError

DATA = f"s3://{ObjectStore.BUCKET}/files"


def test_a_lake_in_a_bucket_stores_each_frame_once_and_is_tidied(dsn: str, bucket: ObjectStore) -> None:
    stored = list(frames())
    assert catalog.create(dsn, DATA, SETTINGS)
    archive = take(dsn, "a")
    archive.put_stream([stored[:60]], 2)

    bucket.kill()
    bucket.start(file_bytes=1_000)
    with pytest.raises(
        StorageError, match=r"it may be full\. Make room in it.*What was received is not lost"
    ):
        archive.put_stream([stored[60:]], 3)
    bucket.kill()
    with pytest.raises(StorageError, match=r"does not answer\. Start it, or correct AWS_ENDPOINT_URL"):
        archive.put_stream([stored[60:]], 3)
    bucket.start()
    archive.close()

    again = take(dsn, "a")
    assert again.held.next == 2
    again.put_stream([stored], 3)
    again.close()
    keeper.keep(dsn, SETTINGS, holder="k", wall_ns=BOOTED_NS)
    assert ask(dsn, "SELECT count(*), count(DISTINCT (gpu, t_hi_ns)) FROM readings") == [(2400, 2400)]


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_is_not_there_is_one_sentence(dsn: str) -> None:
    with pytest.raises(StorageError, match=r"could not write to s3://other/x: .* no such bucket .* --data"):
        catalog.create(dsn, "s3://other/x", SETTINGS)


def test_a_wrong_key_is_one_sentence(dsn: str, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    del bucket
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match=r"refuses these credentials .*Set AWS_ACCESS_KEY_ID"):
        catalog.create(dsn, DATA, SETTINGS)


def test_credentials_are_those_that_other_clients_take() -> None:
    assert secret({}) == {"REGION": "us-east-1"}
    given = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SESSION_TOKEN": "c",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://other:1",
        "AWS_ENDPOINT_URL_S3": "https://store:9000",
    }
    assert secret(given) == {
        "KEY_ID": "a",
        "SECRET": "b",
        "SESSION_TOKEN": "c",
        "REGION": "eu-west-1",
        "ENDPOINT": "store:9000",
        "USE_SSL": True,
        "URL_STYLE": "path",
    }
    with pytest.raises(SettingsError, match=r"could not use the object store store:9000: it is no URL"):
        secret({"AWS_ENDPOINT_URL": "store:9000"})
