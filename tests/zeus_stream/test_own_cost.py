import subprocess
import sys
import time

from zeus_stream.own_cost import cpu_seconds, words

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"


def test_work_of_this_process_and_of_its_children_counts() -> None:
    before = cpu_seconds()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    own = cpu_seconds() - before
    assert 0.25 <= own < 5
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = cpu_seconds() - before - own
        child.communicate("\n")
    assert living >= 0.45
    assert cpu_seconds() - before - own >= 0.45, "a child that has ended still counts"


def test_the_words_have_seconds_and_a_share() -> None:
    assert words().endswith("% of a core since its start")
