import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.messages import RUN_STARTED
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Batch
from zeus_stream.training.identity import ProcessIdentity, ScriptIdentity, identify

ALONE = ProcessIdentity("/home/me/train_gpt.py", "boot-7", "f00d")
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def who(environ: dict[str, str], process: ProcessIdentity = ALONE, **said: str) -> ScriptIdentity:
    return identify(environ, process, job=said.get("job"), run=said.get("run"))


def test_a_plain_script_is_its_own_run_on_every_gpu_of_the_host() -> None:
    assert who({}) == ScriptIdentity(job="train_gpt", run="f00d", rank=0, world_size=1, gpus=("index:all",))


def test_a_rank_that_the_environment_does_not_name_is_that_of_torch() -> None:
    lightning = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "9"}
    found = who(lightning, replace(ALONE, ranks=(1, 2)))
    assert (found.rank, found.world_size, found.run, found.gpus) == (1, 2, "h:9", ("index:1",))
    assert who(TORCHRUN, replace(ALONE, ranks=(1, 2))).rank == 5


def test_a_child_of_a_measured_script_is_part_of_its_run_and_the_script_itself_is_not() -> None:
    inherited = {"ZEUS_STREAM_INHERITED": "4711:feed"}
    assert (who(inherited).run, who(inherited).parent_pid) == ("feed", 4711)
    assert who(inherited | {"ZEUS_STREAM_RUN": "feed"}).parent_pid == 4711
    assert who(inherited | {"ZEUS_STREAM_RUN": "mine"}).parent_pid is None
    assert who(inherited, ProcessIdentity("a.py", "boot-7", "f00d", pid=4711)).run == "f00d"
    assert who(inherited | {"ZEUS_STREAM_RUN": "mine"}).run == "mine"
    assert who({"ZEUS_STREAM_INHERITED": "nonsense"}).run == "f00d"


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        pytest.param("2,0", ("index:2", "index:0"), id="integers, in their order"),
        pytest.param("", (), id="empty: none"),
        pytest.param("-1", (), id="minus one: none"),
        pytest.param("0, 1", ("index:0", "index:1"), id="blanks are ignored"),
        pytest.param("0,none,1", ("index:0",), id="it ends at the first invalid entry"),
        pytest.param("GPU-5a1c,GPU-77", ("GPU-5a1c", "GPU-77"), id="the beginnings of UUIDs as they are"),
        pytest.param("MIG-12ab/1/0", ("MIG-12ab/1/0",), id="a MIG instance as it is"),
        pytest.param("1,1", (), id="twice the same: none"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible: str, gpus: tuple[str, ...]) -> None:
    assert who({"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus


def test_what_cuda_itself_says_wins_over_the_environment_but_not_over_a_mig_instance() -> None:
    process = ProcessIdentity("t.py", "l", "t", cuda=("GPU-a", "GPU-b"))
    assert who({"CUDA_VISIBLE_DEVICES": "3,1"}, process).gpus == ("GPU-a", "GPU-b")
    assert who({"CUDA_VISIBLE_DEVICES": "MIG-1"}, process).gpus == ("MIG-1",)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        pytest.param({}, ("index:1",), id="of all"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, ("index:5",), id="of those visible"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "6"}, ("index:6",), id="the only one, which the launcher chose"
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, (), id="none"),
        pytest.param({"ZEUS_STREAM_GPUS": "GPU-a,GPU-b"}, ("GPU-b",), id="of those listed for all ranks"),
    ],
)
def test_a_rank_has_the_device_of_its_local_number(environ: dict[str, str], gpus: tuple[str, ...]) -> None:
    assert who(TORCHRUN | environ).gpus == gpus


def test_what_the_script_says_wins_over_the_variables_of_zeus_stream_and_those_over_the_rest() -> None:
    environ = {
        "ZEUS_STREAM_JOB": "bert",
        "ZEUS_STREAM_RUN": "r1",
        "ZEUS_STREAM_GPUS": "GPU-x, 3",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert who(environ) == ScriptIdentity(
        job="bert", run="r1", rank=0, world_size=1, gpus=("GPU-x", "index:3")
    )
    said = identify(TORCHRUN | environ, ALONE, job="j", run="r", gpus=[1, "GPU-y"])
    assert (said.job, said.run, said.gpus) == ("j", "r", ("index:1", "GPU-y"))


@pytest.mark.parametrize(
    ("said", "variable", "size"),
    [(None, "64", 64), (32, "64", 32), (None, "many", None), (0, None, None), (True, None, None)],
)
def test_the_batch_size_is_the_scripts_or_the_variables(
    said: int | None, variable: str | None, size: int | None
) -> None:
    environ = {} if variable is None else {"ZEUS_STREAM_BATCH_SIZE": variable}
    assert identify(environ, ALONE, batch_size=said).batch_size == size


@pytest.mark.parametrize(
    ("script", "job"),
    [
        ("/x/train.py", "train"),
        ("/x/pkg/__main__.py", "pkg"),
        ("-c", "python"),
        ("", "python"),
        ("/x/bad\udcff.py", "bad?"),
    ],
)
def test_a_job_is_called_after_its_script(script: str, job: str) -> None:
    assert who({}, ProcessIdentity(script, "l", "t")).job == job


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        pytest.param(TORCHRUN | {"TORCHELASTIC_RUN_ID": "abc"}, "abc.0", id="torchrun with an id"),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2"},
            "abc.2",
            id="a restart is another run",
        ),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "h"},
            "boot-7",
            id="torchrun without an id on one host: by its process",
        ),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "h:1",
            id="on several hosts: by where they meet",
        ),
        pytest.param(
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"},
            "slurm-77.1.0",
            id="srun: by its step",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "ns-1"},
            "ns-1",
            id="mpirun: by its namespace",
        ),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "f00d", id="one rank alone: by nothing but chance"),
    ],
)
def test_all_ranks_of_a_run_arrive_at_one_name(environ: dict[str, str], run: str) -> None:
    assert who(environ).run == run
    if who(environ).world_size > 1:
        other = ProcessIdentity("/home/me/train_gpt.py", ALONE.launcher, "another")
        for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
            environ = environ | {name: "0"} if name in environ else environ
        assert who(environ, other).run == run


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, 2, 3),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2),
        (TORCHRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, 5, 8),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1),  # a batch script: no srun, no ranks
        ({"RANK": "9", "WORLD_SIZE": "8"}, 0, 1),
        ({"RANK": "x", "WORLD_SIZE": "8"}, 0, 1),
    ],
)
def test_the_rank_is_the_innermost_launchers(environ: dict[str, str], rank: int, size: int) -> None:
    identity = who(environ)
    assert (identity.rank, identity.world_size) == (rank, size)


NAMES = st.sampled_from(
    [
        "CUDA_VISIBLE_DEVICES",
        "ZEUS_STREAM_GPUS",
        "ZEUS_STREAM_JOB",
        "ZEUS_STREAM_RUN",
        "ZEUS_STREAM_BATCH_SIZE",
        "LOCAL_RANK",
        *TORCHRUN,
    ]
)
VALUES = st.text(alphabet=string.printable + "é\udcff", max_size=300)


@given(st.dictionaries(NAMES, VALUES), VALUES)
def test_whatever_the_environment_says_the_message_can_be_sent(environ: dict[str, str], script: str) -> None:
    me = who(environ, ProcessIdentity(script, "l", "t"))
    started = replace(RUN_STARTED, **asdict(me))
    assert codec.decode(codec.encode(Batch("s", 0, (started,))), Batch).events == (started,)
