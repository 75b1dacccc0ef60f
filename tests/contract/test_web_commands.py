"""Who may command the controller: by password, by certificate, by the kernel over loopback."""

import asyncio
import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from joulecut_controller.orders import Done, Order
from joulecut_controller.web.app import build
from joulecut_controller.web.commands import CommandChannel
from joulecut_controller.web.publisher import Publisher
from joulecut_wire.web_config import WebConfig

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4, b"2a")).decode()


def web_config(folder: Path, **config: Any) -> WebConfig:
    (folder / "web.yaml").write_text(yaml.safe_dump(config))
    return WebConfig(folder / "web.yaml", pytest.fail)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def commanded(
    web: WebConfig | None, *, client: str, authorization: str = "", connected: bool = False
) -> tuple[int, Any, list[Order]]:
    """A pause posted by a client of this address; `connected` to a port of this process."""
    if connected:
        family = socket.AF_INET6 if ":" in client else socket.AF_INET
        with (
            socket.create_server((client, 0), family=family) as server,
            socket.create_connection(server.getsockname()[:2]) as here,
        ):
            return _commanded(web, here.getsockname()[:2], server.getsockname()[1], authorization)
    return _commanded(web, (client, 40000), 9440, authorization)


def _commanded(
    web: WebConfig | None, client: tuple[str, int], port: int, authorization: str
) -> tuple[int, Any, list[Order]]:
    taken: list[Order] = []

    async def obey(order: Order) -> Done:
        taken.append(order)
        return Done("done")

    headers = {
        "host": "127.0.0.1:9440",
        "content-type": "application/json",
        "x-joulecut-command": "1",
        "authorization": authorization,
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/jobs/demo/pause",
        "raw_path": b"/api/v1/jobs/demo/pause",
        "root_path": "",
        "query_string": b"",
        "client": client,
        "server": ("127.0.0.1", port),
        "headers": [(k.encode(), v.encode()) for k, v in headers.items() if v],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"by": "bob"}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        channel = CommandChannel()
        channel.open(obey)
        await build(Publisher(), web=web, channel=channel)(scope, receive, send)

    asyncio.run(ask())
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body), taken


def test_the_trail_names_the_user_whatever_he_calls_himself(tmp_path: Path) -> None:
    web = web_config(tmp_path, basic_auth_users={"alice": HASH})
    for client in ("127.0.0.1", "10.0.0.9"):
        status, said, taken = commanded(web, client=client, authorization=basic("alice", PASSWORD))
        assert status == 200, said
        assert [order.by for order in taken] == ["bob (alice)"]
    for wrong in ("", basic("alice", "wrong"), basic("eve", PASSWORD)):
        status, _, taken = commanded(web, client="127.0.0.1", authorization=wrong)
        assert (status, taken) == (401, []), "loopback is no password"


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_without_a_login_our_own_user_commands_over_loopback(client: str) -> None:
    status, said, taken = commanded(None, client=client, connected=True)
    assert status == 200, said
    assert [order.by for order in taken] == [f"bob (loopback, uid {os.geteuid()})"]


@pytest.mark.parametrize(
    ("client", "why"),
    [("10.0.0.9", "the sender is not authenticated"), ("127.0.0.1", "only root and the user")],
)
def test_without_a_login_a_client_that_the_kernel_does_not_know_does_not(
    client: str, why: str
) -> None:
    status, said, taken = commanded(None, client=client)
    assert (status, taken) == (403, [])
    assert why in said["error"]


def test_a_page_that_asks_nobody_takes_no_command_from_a_network(tmp_path: Path) -> None:
    web = web_config(tmp_path, http_server_config={"headers": {}})
    assert commanded(web, client="10.0.0.9")[0] == 403
    assert commanded(web, client="127.0.0.1", connected=True)[0] == 200
