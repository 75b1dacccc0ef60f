"""The local protocol: what goes in comes out, and no bytes can do more than be refused."""

import math
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.lease import CAUSES, Lease
from joulecut_agent.keeper.protocol import (
    WRITTEN_MAX,
    ProtocolError,
    Reply,
    Slot,
    decode_reply,
    encode_request,
)
from joulecut_agent.keeper.requests import (
    GPUS_MAX,
    Apply,
    Clear,
    ClockLimits,
    GpuSetting,
    Hold,
    Release,
    Renew,
    Request,
    Resume,
    Status,
    Step,
    Yield,
)

letters = st.characters(exclude_characters="\0", exclude_categories=("Cs",))
names = st.text(letters, min_size=1, max_size=24)
longs = st.integers(0, 2**64 - 1)
shorts = st.integers(0, 2**16 - 1)
words = st.integers(0, 2**32 - 1)
limits = st.builds(ClockLimits, shorts, shorts, words)
schedules = st.lists(shorts, max_size=32).map(tuple)
seconds = st.floats(allow_nan=False)
jobs = st.text(letters, max_size=60)
uuids = st.lists(names, max_size=GPUS_MAX).map(tuple)
settings = st.builds(GpuSetting, limits, schedules, st.booleans())
requests = st.one_of(
    st.builds(
        Apply,
        longs,
        jobs,
        longs,
        seconds,
        st.dictionaries(names, settings, max_size=GPUS_MAX),
    ),
    st.builds(Renew, longs, jobs, longs, seconds),
    st.builds(
        Clear,
        longs,
        jobs,
        uuids,
        st.sampled_from(["cleared", "job_ended"]),
        st.booleans(),
    ),
    st.builds(Step, jobs, longs, names, shorts, seconds),
    st.builds(Hold, uuids, seconds),
    st.builds(Yield, names, longs, longs),
    st.builds(Release, seconds),
    st.just(Resume()),
    st.builds(Status, uuids),
)
leases = st.builds(Lease, jobs, longs, longs, limits, seconds, schedules, st.booleans())
slots = st.builds(
    Slot,
    uuid=names,
    accepted=st.booleans(),
    reason=st.text(letters, max_size=30),
    lease=st.none() | leases,
    restores=st.dictionaries(st.sampled_from(CAUSES), words),
    kept_power_mw=words,
    kept_left_s=st.just(inf) | seconds,
    written_mhz=st.lists(shorts, max_size=WRITTEN_MAX).map(tuple),
)
replies = st.builds(
    Reply,
    serial=st.integers(0, 2**32 - 1),
    epoch_seen=longs,
    bounds=st.builds(Bounds, seconds, shorts, shorts, seconds, shorts, *[seconds] * 4),
    slots=st.lists(slots, max_size=GPUS_MAX).map(tuple),
    stopped=st.text(letters, max_size=60),
)


@given(st.integers(0, 2**32 - 1), requests)
def test_a_request_comes_out_as_it_went_in(serial: int, request: Request) -> None:
    raw = encode_request(serial, request)
    assert len(raw) == wire.REQUEST_BYTES
    assert wire.decode_request(raw) == (serial, request)


@given(replies)
def test_a_reply_comes_out_as_it_went_in(reply: Reply) -> None:
    raw = wire.encode_reply(reply)
    assert len(raw) == wire.REPLY_BYTES
    assert decode_reply(raw) == reply


def test_a_whole_node_is_one_message() -> None:
    uuids = [f"{n:096}" for n in range(GPUS_MAX)]
    highest = ClockLimits(65_535, 65_535, 2**32 - 1)
    setting = GpuSetting(highest, (65_535,) * 32, keep_power_limit=True)
    request = Apply(2**64 - 1, "j" * 253, 2**64 - 1, 1.0, dict.fromkeys(uuids, setting))
    assert wire.decode_request(encode_request(1, request)) == (1, request)
    numbers = (2**64 - 1, 2**64 - 1, highest, 1.0, (65_535,) * 32, True, 65_535, 1.0)
    lease = Lease("j" * 253, *numbers)
    counts = dict.fromkeys(CAUSES, 2**32 - 1)
    written_mhz = (65_535,) * WRITTEN_MAX
    slots = tuple(
        Slot(uuid, False, "r" * 160, lease, counts, 2**32 - 1, 1.0, written_mhz) for uuid in uuids
    )
    reply = Reply(2**32 - 1, 2**64 - 1, Bounds(), slots, "s" * 160, 1.0)
    assert decode_reply(wire.encode_reply(reply)) == reply


def test_no_name_makes_a_reply_that_does_not_fit() -> None:
    """Sixteen leases of a job whose letters take four bytes each: who asks for them is answered."""
    about = {"request": "apply", "epoch": 1, "generation": 1, "ttl_s": 1.0, "settings": {}}
    for letters, fits in ((63, True), (64, False), (253, False)):
        packet = {"version": wire.VERSION, "serial": 1, "request": about | {"job": "😀" * letters}}
        body = msgspec.msgpack.encode(packet)
        raw = (len(body).to_bytes(2, "little") + body).ljust(wire.REQUEST_BYTES, b"\0")
        if fits:
            assert wire.decode_request(raw)
        else:
            with pytest.raises(ProtocolError, match=f"{4 * letters} bytes; allowed: 253"):
                wire.decode_request(raw)


def test_the_sizes_are_those_in_the_documentation() -> None:
    assert (wire.REQUEST_BYTES, wire.REPLY_BYTES) == (8192, 24_576)


def test_another_version_is_named() -> None:
    other = "joulecut-keeper-99"
    body = msgspec.msgpack.encode({"version": other, "new": 1})
    for size, decode in (
        (wire.REQUEST_BYTES, wire.decode_request),
        (wire.REPLY_BYTES, decode_reply),
        (16_384, decode_reply),
    ):
        raw = (len(body).to_bytes(2, "little") + body).ljust(size, b"\0")
        with pytest.raises(ProtocolError, match=f"speaks {other}, this one {wire.VERSION}"):
            decode(raw)


@given(st.binary(max_size=2 * wire.REQUEST_BYTES))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    for decode in (wire.decode_request, decode_reply):
        with pytest.raises(ProtocolError):
            decode(raw)


@given(requests, st.lists(st.tuples(st.integers(0, wire.REQUEST_BYTES - 1), st.integers(0, 255))))
def test_a_damaged_request_is_a_command_or_refused(
    request: Request, damage: list[tuple[int, int]]
) -> None:
    raw = bytearray(encode_request(1, request))
    for place, byte in damage:
        raw[place] = byte
    try:
        _, decoded = wire.decode_request(bytes(raw))
    except ProtocolError:
        return
    assert isinstance(decoded, Request)
    if isinstance(decoded, Apply):
        assert len(decoded.settings) <= GPUS_MAX


@given(replies, st.lists(st.tuples(st.integers(0, wire.REPLY_BYTES - 1), st.integers(0, 255))))
def test_a_damaged_reply_is_a_reply_or_refused(reply: Reply, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(wire.encode_reply(reply))
    for place, byte in damage:
        raw[place] = byte
    try:
        decode_reply(bytes(raw))
    except ProtocolError:
        return


FREE = GpuSetting(ClockLimits(0, 1))


@pytest.mark.parametrize(
    "request_",
    [
        Clear(job="j" * 254),
        Apply(1, "j", 1, 1.0, {"u" * 97: FREE}),
        Apply(1, "j", 1, 1.0, {"u": GpuSetting(ClockLimits(0, 65_536))}),
        Apply(1, "j", 1, 1.0, {"u": GpuSetting(ClockLimits(-1, 5))}),
        Apply(1, "j", 1, 1.0, {"u": GpuSetting(ClockLimits(0, 5, 2**32))}),
        Apply(1, "j", 1, 1.0, {f"u{n}": FREE for n in range(17)}),
        Apply(1, "j", 1, 1.0, {"u": GpuSetting(ClockLimits(0, 1), tuple(range(33)))}),
        Clear(epoch=2**64),
        Renew(1, "j", -1, 1.0),
        Clear(cause="cleared\n"),
        Status(tuple(f"u{n}" for n in range(17))),
    ],
)
def test_what_does_not_fit_is_not_cut_off(request_: Request) -> None:
    with pytest.raises(ProtocolError):
        encode_request(0, request_)


def test_no_number_is_still_a_message() -> None:
    """Whether a ttl makes sense is for the bounds to say."""
    _, request = wire.decode_request(encode_request(1, Renew(1, "j", 1, math.nan)))
    assert isinstance(request, Renew)
    assert math.isnan(request.ttl_s)


def test_a_long_reason_is_cut_between_letters() -> None:
    slot = Slot("u", False, "é" * 200)
    reply = Reply(1, 0, Bounds(), (slot,))
    assert decode_reply(wire.encode_reply(reply)).slots[0].reason == "é" * 80
