"""Scrapes of services that hang."""

import threading
from pathlib import Path

import pytest
import zmq

from zeus_stream.paths import Places, endpoint
from zeus_stream.screens.metrics import scrape
from zeus_stream.screens.metrics.scrape import Scrape

SCRAPES = 8


def test_scrapes_that_wait_for_a_service_that_hangs_share_one_answer(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for all before it: Prometheus had given them up, and saw no collector that is down."""
    monkeypatch.setattr(scrape, "ANSWER_S", 0.5)
    where = Places(zeus_dir, zeus_dir)
    scraped = Scrape({"collector": where})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hangs:
        hangs.bind(endpoint(where.control))
        answers: list[list[float]] = []

        def ask() -> None:
            answers.append([sample.value for family in scraped.families() for sample in family.samples])

        threads = [threading.Thread(target=ask) for _ in range(SCRAPES)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        questions = 0
        while hangs.poll(0):
            hangs.recv_multipart()
            questions += 1
    assert answers == [[0.0]] * SCRAPES
    assert questions < SCRAPES
