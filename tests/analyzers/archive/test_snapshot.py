import subprocess
import sys
from pathlib import Path

import duckdb

from analyzers.archive.open_file import copy_whole, is_written

WRITER = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1], config={"checkpoint_threshold": "100KB"})
connection.execute("CREATE TABLE parts (number BIGINT, text VARCHAR)")
connection.execute("CREATE TABLE wholes (number BIGINT)")
number = 0
while True:
    connection.execute("BEGIN")
    connection.execute(f"INSERT INTO parts SELECT {number}, repeat('x', 100) FROM range(100)")
    connection.execute(f"INSERT INTO wholes VALUES ({number})")
    connection.execute("COMMIT")
    number += 1
    if number == 1:
        print("begun", flush=True)
"""


def test_copies_of_a_file_that_is_written_have_whole_transactions_and_never_go_back(tmp_path: Path) -> None:
    path, newest = tmp_path / "energy.duckdb", 0
    writing = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(writing, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "begun\n"
            assert is_written(path)
            for number in range(20):
                copy = tmp_path / f"copy{number}.duckdb"
                copy_whole(path, copy)
                with duckdb.connect(str(copy), read_only=True) as connection:
                    query = "SELECT (SELECT count(*) FROM parts), (SELECT count(*) FROM wholes)"
                    counts = connection.execute(query).fetchone()
                assert counts is not None
                parts, wholes = counts
                assert parts == 100 * wholes
                assert wholes >= newest
                newest = wholes
        finally:
            writer.kill()
    assert newest > 1
    assert not is_written(path)
