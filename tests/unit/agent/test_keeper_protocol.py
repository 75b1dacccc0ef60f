"""The local protocol: what goes in comes out, and no bytes can do more than be refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.lease import CAUSES, GPUS_MAX, Command, Lease, Op
from joulecut_agent.keeper.protocol import ProtocolError, Reply, Slot, decode_reply, encode_request

letters = st.characters(exclude_characters="\0", exclude_categories=("Cs",))
names = st.text(letters, min_size=1, max_size=24)
longs = st.integers(0, 2**64 - 1)
shorts = st.integers(0, 2**16 - 1)
clock_pairs = st.tuples(shorts, shorts)
programs = st.lists(shorts, max_size=32).map(tuple)
seconds = st.floats(allow_nan=False)
commands = st.builds(
    Command,
    op=st.integers(1, max(Op)),
    epoch=longs,
    job=st.text(letters, max_size=60),
    generation=longs,
    ttl_s=seconds,
    clocks_mhz=st.dictionaries(names, clock_pairs, max_size=GPUS_MAX),
    cause=st.sampled_from(CAUSES),
    power_mw=st.dictionaries(names, st.integers(0, 2**32 - 1), max_size=GPUS_MAX),
    schedules=st.dictionaries(names, programs, max_size=GPUS_MAX),
)
slots = st.builds(
    Slot,
    uuid=names,
    accepted=st.booleans(),
    reason=st.text(letters, max_size=30),
    lease=st.none()
    | st.builds(
        Lease,
        st.text(letters, max_size=60),
        longs,
        longs,
        clock_pairs,
        seconds,
        st.integers(0, 2**32 - 1),
    ),
    restores=st.tuples(*[st.integers(0, 2**32 - 1)] * len(CAUSES)),
)
replies = st.builds(
    Reply,
    serial=st.integers(0, 2**32 - 1),
    epoch_seen=longs,
    bounds=st.builds(Bounds, seconds, shorts, shorts, seconds, shorts, seconds, seconds, seconds),
    slots=st.lists(slots, max_size=GPUS_MAX).map(tuple),
    stopped=st.text(letters, max_size=60),
)


@given(st.integers(0, 2**32 - 1), commands)
def test_a_request_comes_out_as_it_went_in(serial: int, command: Command) -> None:
    raw = encode_request(serial, command)
    assert len(raw) == wire.REQUEST_BYTES
    assert wire.decode_request(raw) == (serial, command)


@given(replies)
def test_a_reply_comes_out_as_it_went_in(reply: Reply) -> None:
    raw = wire.encode_reply(reply)
    assert len(raw) == wire.REPLY_BYTES
    assert decode_reply(raw) == reply


def test_a_whole_node_is_one_message() -> None:
    uuids = [f"{n:096}" for n in range(GPUS_MAX)]
    command = Command(
        1, 2**64 - 1, "j" * 253, 2**64 - 1, 1.0, dict.fromkeys(uuids, (65_535, 65_535)),
        power_mw=dict.fromkeys(uuids, 2**32 - 1), schedules=dict.fromkeys(uuids, (65_535,) * 32),
    )  # fmt: skip
    assert wire.decode_request(encode_request(1, command)) == (1, command)
    lease = Lease("j" * 253, 2**64 - 1, 2**64 - 1, (65_535, 65_535), 1.0, 2**32 - 1, (65_535,) * 32)
    counts = (2**32 - 1,) * len(CAUSES)
    slots = tuple(Slot(uuid, False, "r" * 160, lease, counts) for uuid in uuids)
    reply = Reply(1, 2**64 - 1, Bounds(), slots, "s" * 160, 1.0)
    assert decode_reply(wire.encode_reply(reply)) == reply


def test_the_sizes_are_those_in_the_documentation() -> None:
    assert (wire.REQUEST_BYTES, wire.REPLY_BYTES) == (8192, 16_384)


@given(st.binary(max_size=2 * wire.REQUEST_BYTES))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    for decode in (wire.decode_request, decode_reply):
        with pytest.raises(ProtocolError):
            decode(raw)


@given(commands, st.lists(st.tuples(st.integers(0, wire.REQUEST_BYTES - 1), st.integers(0, 255))))
def test_a_damaged_request_is_a_command_or_refused(
    command: Command, damage: list[tuple[int, int]]
) -> None:
    raw = bytearray(encode_request(1, command))
    for place, byte in damage:
        raw[place] = byte
    try:
        _, decoded = wire.decode_request(bytes(raw))
    except ProtocolError:
        return
    assert 1 <= decoded.op <= max(Op)
    assert len(decoded.clocks_mhz) <= GPUS_MAX


@given(replies, st.lists(st.tuples(st.integers(0, wire.REPLY_BYTES - 1), st.integers(0, 255))))
def test_a_damaged_reply_is_a_reply_or_refused(reply: Reply, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(wire.encode_reply(reply))
    for place, byte in damage:
        raw[place] = byte
    try:
        decode_reply(bytes(raw))
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "command",
    [
        Command(1, job="j" * 254),
        Command(1, clocks_mhz={"u" * 97: (0, 1)}),
        Command(1, clocks_mhz={"u": (0, 65_536)}),
        Command(1, clocks_mhz={"u": (-1, 5)}),
        Command(1, clocks_mhz={f"u{n}": (0, 1) for n in range(17)}),
        Command(1, epoch=2**64),
        Command(1, generation=-1),
        Command(1, schedules={"u": tuple(range(33))}),
        Command(1, cause="cleared\n"),
        Command(max(Op) + 1),
    ],
)
def test_what_does_not_fit_is_not_cut_off(command: Command) -> None:
    with pytest.raises(ProtocolError):
        encode_request(0, command)


def test_no_number_is_still_a_message() -> None:
    """Whether a ttl makes sense is for the bounds to say."""
    _, command = wire.decode_request(encode_request(1, Command(1, ttl_s=math.nan)))
    assert math.isnan(command.ttl_s)


def test_a_long_reason_is_cut_between_letters() -> None:
    slot = Slot("u", False, "é" * 200)
    reply = Reply(1, 0, Bounds(), (slot,))
    assert decode_reply(wire.encode_reply(reply)).slots[0].reason == "é" * 80
