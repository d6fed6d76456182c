import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.messages import SET_CONTROL
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import SetControl
from zeus_stream.protocol.events import Batch, Metric, RunStarted, StepBoundary
from zeus_stream.protocol.fields import VERSION, Unknown
from zeus_stream.protocol.frames import Frame, decode_frame, encode_frame
from zeus_stream.protocol.readings import READING_BYTES, READING_FIELDS, READING_STRUCT

names = st.text(min_size=1, max_size=200)
ns = st.integers(0, 2**62)
walls = st.integers(0, 4_102_444_800 * 10**9)
counts = st.integers(0, 2**53)
steps = st.builds(
    StepBoundary, counts, st.none() | ns, st.none() | ns,
    st.sampled_from(["dispatch", "device", "ready"]), st.none() | ns,
)  # fmt: skip
metrics = st.builds(Metric, ns, names, st.floats(allow_nan=False, allow_infinity=False))
started = st.builds(
    RunStarted,
    t_ns=ns,
    job=names,
    run=names,
    rank=counts,
    world_size=counts,
    gpus=st.lists(st.text(min_size=1, max_size=80), max_size=8).map(tuple),
    pid=counts,
    boot_id=names,
    wall_ns=walls,
    wall_error_ns=ns,
)
batches = st.builds(Batch, names, counts, st.lists(steps | metrics | started, max_size=20).map(tuple))
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.sweep
@given(batches)
def test_a_message_comes_back_as_it_went(batch: Batch) -> None:
    assert codec.decode(codec.encode(batch), Batch) == batch


@given(batches, st.data())
def test_a_cut_message_is_malformed(batch: Batch, data: st.DataObject) -> None:
    whole = codec.encode(batch)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedError):
        codec.decode(whole[:cut], Batch)


@given(st.sampled_from(SetControl.__struct_fields__), junk)
def test_a_field_of_any_value_is_taken_whole_or_refused_by_name(field: str, value: object) -> None:
    good = replace(SET_CONTROL, fence=1)
    content = asdict(good) | {field: value}
    data = msgpack.packb([VERSION, "SetControl", content])
    try:
        decoded = codec.decode(data, SetControl)
    except MalformedError as wrong:
        assert field in str(wrong)  # noqa: PT017  (either outcome is right; each is checked)
    else:
        assert getattr(decoded, field) == value
        assert type(getattr(decoded, field)) is type(value)


def pack(kind: str, content: object, version: int = VERSION) -> bytes:
    return bytes(msgpack.packb([version, kind, content]))


def batch(**fields: object) -> bytes:
    return pack("Batch", {"session": "s", "sequence": 1, "events": []} | fields)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param(pack("Batch", {}), "session: absent", id="a field is absent"),
        pytest.param(batch(sequence=-1), "sequence: expected `int` >= 0", id="below"),
        pytest.param(batch(session="s" * 201), "session: expected `str` of length <= 200", id="long"),
        pytest.param(batch(sequence=True), "sequence: expected `int`, got `bool`", id="bool"),
        pytest.param(batch(events=[[1]]), r"events\[0\]: expected `object`, got `array`", id="event"),
        pytest.param(
            batch(events=[{"type": "EpochBegan", "t_ns": 1}]), r"events\[0\].index: absent", id="inside"
        ),
        pytest.param(
            batch(events=[{"type": "Metric", "t_ns": 1, "name": "loss", "value": float("nan")}]),
            r"events\[0\].value: expected `float`",
            id="not a number",
        ),
        pytest.param(pack("Batch", {}, version=9), "version 9", id="another version"),
        pytest.param(pack("Query", {}), "expected Batch", id="a kind that does not belong here"),
        pytest.param(b"\x93" * 5000, "not MessagePack", id="nested without end"),
        pytest.param(b"\xdd\xff\xff\xff\xff", "not MessagePack", id="a length that is not there"),
        pytest.param(bytes(codec.MAX_BYTES + 1), "at most", id="oversized"),
    ],
)
def test_a_wrong_message_is_refused_with_its_reason(data: bytes, sentence: str) -> None:
    with pytest.raises(MalformedError, match=sentence):
        codec.decode(data, Batch)


def test_a_newer_sender_is_understood() -> None:
    events = [
        {"type": "StepBoundary", "index": 1, "ended_ns": None, "began_ns": 5, "colour": "red"},
        {"type": "Nap", "t_ns": 1},
    ]
    data = pack("Batch", {"session": "s", "sequence": 0, "events": events, "shape": "round"})
    assert codec.decode(data, Batch).events == (StepBoundary(1, None, 5), Unknown("Nap"))


def test_a_reading_row_is_the_same_for_struct_and_for_columns() -> None:
    import struct

    import numpy as np

    dtype = np.dtype(list(READING_FIELDS))
    row = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert dtype.itemsize == struct.calcsize(READING_STRUCT) == READING_BYTES
    assert np.frombuffer(struct.pack(READING_STRUCT, *row), dtype)[0].item() == row


@pytest.mark.sweep
@given(names, counts, names, ns, names, st.binary(max_size=100))
def test_a_frame_comes_back_as_it_went(
    log: str, offset: int, host: str, t_ns: int, topic: str, body: bytes
) -> None:
    frame = Frame(log_id=log, offset=offset, host=host, t_ns=t_ns, topic=topic, body=body)
    assert decode_frame(*encode_frame(frame)) == frame
