"""What every answer looks like: JSON without NaN, errors as one sentence."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from joulecut_controller.web.pieces import Pieces

Json = dict[str, Any]

JSON_TYPE = "application/json"


def number(value: float | None) -> float | None:
    """A finite number, or null: infinity is how the view says "never", and JSON cannot."""
    return value if value is not None and math.isfinite(value) else None


def encode(value: Any) -> bytes:
    """Compact JSON. Raises ValueError for NaN and infinities: no reader could parse them."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def found(value: Any) -> Response:
    return found_bytes(encode(value))


def found_bytes(body: bytes) -> Response:
    # no-store: what a browser kept would be shown as if it were now.
    return Pieces(body, media_type=JSON_TYPE, headers={"cache-control": "no-store"})


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """`{"error": "one sentence"}` under the right status."""
    return Response(
        encode({"error": sentence}),
        status,
        media_type=JSON_TYPE,
        headers={"cache-control": "no-store", **(headers or {})},
    )
