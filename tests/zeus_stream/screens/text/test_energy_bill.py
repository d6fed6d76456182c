import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.query import read_file
from tests.analyzers.measurement.test_named_windows import window
from tests.empty_archive import archive_at
from zeus_stream.screens.text.energy_bill import Bill, bill, print_bill, write_bill
from zeus_stream.settings import Settings


def part(gpu: str, index: int, energy_j: float | None, quality: str = "ok") -> dict[str, Any]:
    low_j, high_j, power_w = (
        (None, None, None) if energy_j is None else (energy_j - 1, energy_j + 1, energy_j / 2)
    )
    return {
        "gpu": gpu, "index": index, "name": "V100", "duration_s": 2.0, "energy_j": energy_j,
        "energy_p2_5_j": low_j, "energy_p97_5_j": high_j, "average_power_w": power_w, "quality": quality,
        "of_host": gpu.startswith(("CPU-", "DRAM-")),
    }  # fmt: skip


def shown(bill: Bill) -> str:
    out = io.StringIO()
    print_bill(bill, "zeus-stream sql ...", out)
    return " ".join(out.getvalue().split())


def test_a_bill_adds_its_gpus_up_and_shows_each() -> None:
    text = shown(Bill("make -j8", (part("GPU-a", 0, 3000.0), part("GPU-b", 1, 600.0))))
    assert "time 2.000 s" in text
    assert "energy 3,600 J (95 %: 3,598.6 to 3,601.4 J), 1.000 Wh" in text
    assert "power 1,800 W on average" in text
    assert "0 V100 3,000 J (95 %: 2,999.0 to 3,001.0 J) 1,500 W" in text
    assert "1 V100 600.0 J (95 %: 599.0 to 601.0 J) 300 W" in text
    assert "warning" not in text


def test_one_gpu_is_named_and_what_is_doubtful_is_said() -> None:
    text = shown(Bill("true", (part("GPU-a", 3, 2.0, "within one refresh"),)))
    assert "warning within one refresh" in text
    assert "GPU 3, V100, GPU-a" in text


def test_cpus_stand_beside_the_sum() -> None:
    cpus = (part("CPU-h-package-0", 0, 40.0), part("DRAM-h-package-0", 1, 2.5))
    text = shown(Bill("true", (part("GPU-a", 0, 600.0),), cpus))
    assert "energy 600.0 J" in text
    assert "host 42.50 J of its CPUs and DRAM" in text


def test_a_part_that_is_missing_leaves_no_sum() -> None:
    lost = Bill("true", (part("GPU-a", 0, 600.0), part("GPU-b", 1, None, "it was lost")))
    assert "energy missing: GPU-b: it was lost" in shown(lost)
    out = io.StringIO()
    write_bill(lost, out)
    content = json.loads(out.getvalue())
    assert (content["energy_j"], content["energy_wh"], content["average_power_w"]) == (None, None, None)
    assert content["missing"] == "GPU-b: it was lost"
    assert [gpu["energy_j"] for gpu in content["gpus"]] == [600.0, None]


def test_as_json_a_bill_has_its_figures_in_full() -> None:
    out = io.StringIO()
    write_bill(Bill("true", (part("GPU-a", 0, 600.0), part("GPU-b", 1, 300.0))), out)
    content = json.loads(out.getvalue())
    del content["gpus"]
    wide_j = 2**0.5
    assert content == {
        "name": "true", "duration_s": 2.0, "energy_j": 900.0, "energy_p2_5_j": pytest.approx(900 - wide_j),
        "energy_p97_5_j": pytest.approx(900 + wide_j), "energy_wh": 0.25, "average_power_w": 450.0,
        "cpu_energy_j": None, "missing": None,
    }  # fmt: skip


@pytest.mark.sweep
def test_a_bill_is_asked_of_the_archive_and_is_none_until_it_is_there(tmp_path: Path) -> None:
    path, settings = tmp_path / "energy.duckdb", Settings()
    archive = DuckdbFile.open(archive_at(path), settings)
    ours = [window(1, 3, 10, gpu=gpu) for gpu in ("GPU-a", "GPU-b")]
    archive.put([], [*ours, replace(ours[0], run="it's another")], {}, replaying=False)
    archive.close()

    def answer(query: str) -> pa.Table:
        return read_file(path, query, settings)

    known = bill(answer, "run", "true")
    assert known is not None
    assert [gpu["gpu"] for gpu in known.parts] == ["GPU-a", "GPU-b"]
    assert (known.duration_s, known.energy_j) == (2, 20)
    assert len((bill(answer, "it's another", "true") or known).parts) == 1
    assert bill(answer, "not yet", "true") is None
