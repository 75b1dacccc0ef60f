"""Long answers leave in pieces, one after the other has been read, and arrive whole."""

import asyncio
import http.client

import large
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import WAIT_S, Serving
from starlette.types import Message

from joulecut_controller.web.responses import CHUNK_BYTES, encode, send_chunks


class Reader:
    """Takes what is sent, or nothing more once it has `room` no longer."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.messages: list[Message] = []
        self._room = asyncio.Semaphore(room)

    async def take(self, message: Message) -> None:
        self.messages.append(message)
        await self._room.acquire()

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages)


@given(st.integers(0, 3), st.integers(-1, 1))
def test_a_body_of_any_length_arrives_whole(pieces: int, odd: int) -> None:
    body = bytes(max(0, pieces * CHUNK_BYTES + odd))
    reader = Reader()
    asyncio.run(send_chunks(reader.take, body))
    assert reader.body == body
    assert all(len(message["body"]) <= CHUNK_BYTES for message in reader.messages)
    *early, last = [message["more_body"] for message in reader.messages]
    assert all(early)
    assert not last


def test_who_reads_slowly_is_sent_no_more_than_was_read() -> None:
    async def sent(reads: int) -> int:
        reader = Reader(room=reads)
        pushing = asyncio.create_task(send_chunks(reader.take, bytes(10 * CHUNK_BYTES)))
        for _ in range(100):
            await asyncio.sleep(0)
        pushing.cancel()
        return len(reader.messages)

    assert asyncio.run(sent(0)) == 1
    assert asyncio.run(sent(3)) == 4


@pytest.mark.parametrize("path", ["/api/v1/board", "/metrics"])
def test_answers_of_one_connection_follow_each_other(path: str) -> None:
    text = b"x 1\n" * CHUNK_BYTES
    with Serving(large.board(600, jobs=10), metrics=lambda _: text) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=WAIT_S)
        bodies = []
        for _ in range(3):
            connection.request("GET", path)
            bodies.append(connection.getresponse().read())
        connection.close()
        assert set(map(len, bodies)) == {len(bodies[0])}
        assert len(bodies[0]) > 2 * CHUNK_BYTES


def test_numbers_and_flags_of_numpy_are_written_as_pythons() -> None:
    value = {"a": np.float64(1.5), "b": np.bool_(True), "c": np.float64("nan"), "d": np.int64(3)}
    assert encode(value) == b'{"a":1.5,"b":true,"c":null,"d":3}'
