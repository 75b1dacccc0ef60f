"""HTTP responses: JSON without NaN, errors as one sentence, long bodies in chunks."""

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Json = dict[str, Any]

JSON_TYPE = "application/json"


def number(value: float | None) -> float | None:
    """A finite number, or null: infinity is how the view says "never", and JSON cannot."""
    return value if value is not None and math.isfinite(value) else None


def encode(value: Any) -> bytes:
    """Compact JSON. Raises ValueError for NaN and infinities: no reader could parse them."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(value: Any) -> Response:
    return json_bytes(encode(value))


def json_bytes(body: bytes) -> Response:
    # no-store: what a browser kept would be shown as if it were now.
    return ChunkedResponse(body, media_type=JSON_TYPE, headers={"cache-control": "no-store"})


def error_response(
    status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """`{"error": "one sentence"}` under the right status."""
    return Response(
        encode({"error": sentence}),
        status,
        media_type=JSON_TYPE,
        headers={"cache-control": "no-store", **(headers or {})},
    )


# Each piece costs turns of an interpreter that others use: of 10 MB to a reader beside two busy
# threads, the median took 94 ms in pieces of 0.5 MiB, 45 ms of 2 MiB and 41 ms whole, while the
# loop was late by 4, 5 and 10 ms in the median, and by 28, 24 and 69 at the 99th percentile.
CHUNK_BYTES = 2 * 2**20
SEND_TIMEOUT_S = 30.0  # Who read nothing for this long is not looking.


async def send_chunks(send: Send, body: bytes, *, more: bool = True) -> None:
    """The body, maybe with more to follow. Raises TimeoutError where nobody reads it."""
    view = memoryview(body)
    for begin in range(0, max(1, len(body)), CHUNK_BYTES):
        piece, last = bytes(view[begin : begin + CHUNK_BYTES]), begin + CHUNK_BYTES >= len(body)
        message = {"type": "http.response.body", "body": piece, "more_body": more or not last}
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send(message)


class ChunkedResponse(Response):
    """As its base, for bodies of any length."""

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        with suppress(TimeoutError):  # the reader is as good as gone; there is nobody to tell
            await send_chunks(send, bytes(self.body), more=False)
