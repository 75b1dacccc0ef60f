"""The routes of uploaded profiles: list, upload, remove.

An upload is a command: the same sender, header and origin, and the leader alone takes it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import TEXT, Answer, Key, listed
from joulecut_controller.board import Board
from joulecut_controller.ports import StoredProfile
from joulecut_controller.web.address import get, post
from joulecut_controller.web.commands import STANDBY, body
from joulecut_controller.web.responses import json_response
from joulecut_wire.errors import BadInput, JoulecutError

UPLOAD_BYTES_MAX = 6 << 20  # a profile of 4 MiB as JSON, line ends escaped


_KEPT = Answer(
    name=TEXT, digest=TEXT, bytes=Key({"type": "integer"}), at_unix_s=Key({"type": "number"})
)
_DONE = Answer(complete=Key({"const": True}), sentence=TEXT, name=TEXT)
T = TypeVar("T")


class ProfileLibrary(Protocol):
    """Keeps uploaded profiles. May block: use a thread. Raises BadInput, Unavailable."""

    def listed(self) -> tuple[StoredProfile, ...]: ...

    def read(self, name: str) -> bytes: ...

    def keep(self, name: str, raw: bytes, by: str, at_unix_s: float) -> str: ...

    def remove(self, name: str, by: str, at_unix_s: float) -> str: ...


class Profiles:
    """Handlers. `now` is the newest board."""

    def __init__(self, library: ProfileLibrary, now: Callable[[], Board]) -> None:
        self._library, self._now = library, now

    @get("profiles", "the uploaded profiles", Answer(profiles=listed(_KEPT)))
    async def listed(self, _: Request) -> Response:
        found = await _done(self._library.listed)
        return json_response({"profiles": [asdict(one) for one in found]})

    @get(
        "profiles/{name}",
        "an uploaded profile",
        Answer(name=TEXT, content=TEXT),
        errors=(404, 503),
    )
    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        raw = await _done(lambda: self._library.read(name))
        if not raw:
            raise HTTPException(404, f"no profile {name!r:.100} was uploaded")
        return json_response({"name": name, "content": raw.decode()})

    @post(
        "profiles/{name}",
        "keeps a profile in the store, where policies can name it",
        body("content", content={"type": "string"}, replace={"const": True}),
        _DONE,
        UPLOAD_BYTES_MAX,
    )
    async def keep(self, request: Request) -> Response:
        raw, by = request.state.body["content"].encode("utf-8", "replace"), request.state.by
        if "replace" not in request.state.body:
            self._check_unused(request.path_params["name"], ": --replace changes their plans")
        elif not request.state.replaces:
            way = f", and {by:.100} may replace none in use: roles.replace of the controller"
            self._check_unused(request.path_params["name"], way, 403)
        return await self._command(request, lambda name, at: self._library.keep(name, raw, by, at))

    @post("profiles/{name}/remove", "removes an uploaded profile", body(), _DONE)
    async def remove(self, request: Request) -> Response:
        name, by = request.path_params["name"], request.state.by
        self._check_unused(name)
        return await self._command(request, lambda name, at: self._library.remove(name, by, at))

    def _check_unused(self, name: str, way: str = "", status: int = 409) -> None:
        """Raises HTTPException."""
        users = [job.view.policy.name for job in self._now().jobs if _uses(job.view.policy, name)]
        if users:
            raise HTTPException(status, f"profile {name} is in use by {', '.join(users[:5])}{way}")

    async def _command(self, request: Request, carry_out: Callable[[str, float], str]) -> Response:
        """`carry_out` gets the profile's name and the time. Raises HTTPException."""
        if not self._now().leads:
            raise HTTPException(503, STANDBY)
        name, at_unix_s = request.path_params["name"], time.time()
        done = await _done(lambda: carry_out(name, at_unix_s))
        return json_response({"complete": True, "sentence": done, "name": name})


async def _done(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except BadInput as error:
        raise HTTPException(400, str(error)) from None
    except JoulecutError as error:
        raise HTTPException(503, str(error)) from None


def _uses(policy: Any, name: str) -> bool:
    return policy.profile is not None and policy.profile.source == f"uploaded {name}"
