"""The credentials of an S3 bucket, from the environment, as DuckDB takes them. Pure.

The names are those of other S3 clients: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION, and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for a store that is not Amazon's.
"""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from zeus_stream.errors import SettingsError

PREFIXES = ("s3://", "s3a://", "s3n://")
"""Of the URL of a bucket."""
_CODE = re.compile(r"\bHTTP (?:code )?(\d{3})\b")
_SILENT = re.compile(r"Could not (?:connect|resolve|establish)|[Tt]imed? ?out|Connection")
_FILE = re.compile(r"[\"']([^\"']*/ducklake-[-0-9a-f]+\.parquet)")
CURE = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL unless it is Amazon's."


def is_bucket(data: str) -> bool:
    """Tell whether Parquet files are in an object store."""
    return data.startswith(PREFIXES)


def secret(environ: Mapping[str, str]) -> dict[str, str | bool]:
    """Return the fields of DuckDB's secret of type ``s3``. Raises SettingsError: the endpoint is no URL."""
    fields: dict[str, str | bool] = {}
    for name, variable in (
        ("KEY_ID", "AWS_ACCESS_KEY_ID"),
        ("SECRET", "AWS_SECRET_ACCESS_KEY"),
        ("SESSION_TOKEN", "AWS_SESSION_TOKEN"),
        ("REGION", "AWS_REGION"),
    ):
        if environ.get(variable):
            fields[name] = environ[variable]
    fields.setdefault("REGION", environ.get("AWS_DEFAULT_REGION") or "us-east-1")
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingsError(
                f"lake: could not use the object store {endpoint}: it is no URL. Set AWS_ENDPOINT_URL to one"
                " such as https://s3.example.org."
            )
        fields |= {"ENDPOINT": parts.netloc, "USE_SSL": parts.scheme == "https", "URL_STYLE": "path"}
    return fields


def trouble(says: str) -> str | None:
    """Return what is wrong with the files, by DuckDB's error, and what to do; None: nothing."""
    code = _CODE.search(says)
    match code and int(code[1]):
        case 401 | 403:
            return f"the object store refuses these credentials for that. {CURE}"
        case 404:
            return "the object store has no such bucket or file. Make the bucket, or correct --data."
        case int(number) if number >= 500:
            return (
                f"the object store cannot do it (HTTP {number}): it may be full. Make room in it, or look at"
                " its log."
            )
    if "HTTP" in says and _SILENT.search(says):
        return "the object store does not answer. Start it, or correct AWS_ENDPOINT_URL."
    if lost := _FILE.search(says):
        return f"{lost[1]} is missing or damaged. Restore this file from the backup of the lake."
    return None
