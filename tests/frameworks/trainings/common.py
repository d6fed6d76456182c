"""What the scripts share."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zeus_stream import Publisher

STEP_S = 0.03
"""Trainings whose logs are looked at take so long for a step: answers come within a few."""


class Broken(Exception):  # noqa: N818  (a mistake of the script)
    """What a script raises."""


@contextmanager
def publisher(job: str) -> Iterator[Publisher]:
    with Publisher(job=job, gpus=["GPU-0"]) as made:
        yield made


@contextmanager
def publisher_alone(job: str) -> Iterator[Publisher]:
    """Give a publisher without a collector."""
    here = os.environ["ZEUS_STREAM_DIR"]
    os.environ["ZEUS_STREAM_DIR"] = f"{here}/nobody"
    try:
        with Publisher(job=job, gpus=["GPU-0"]) as made:
            yield made
    finally:
        os.environ["ZEUS_STREAM_DIR"] = here


def slow(*_: object, **__: object) -> None:
    time.sleep(STEP_S)


def say(**results: Any) -> None:
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
