"""Who may command the controller: by password, by certificate, by loopback, and nobody else."""

import asyncio
import base64
import json
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
    web: WebConfig | None, *, client: str, authorization: str = ""
) -> tuple[int, Any, list[Order]]:
    """A pause posted by a client of this address, without a network in between."""
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
        "client": (client, 40000),
        "server": ("127.0.0.1", 9440),
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


@pytest.mark.parametrize(
    ("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 403)]
)
def test_without_anybody_to_know_only_loopback_may(client: str, status: int) -> None:
    answered, said, taken = commanded(None, client=client)
    assert answered == status
    if status == 200:
        assert [order.by for order in taken] == ["bob (loopback)"]
    else:
        assert "the sender is not authenticated" in said["error"]
        assert taken == []


def test_a_page_that_asks_nobody_takes_no_command_from_a_network(tmp_path: Path) -> None:
    web = web_config(tmp_path, http_server_config={"headers": {}})
    assert commanded(web, client="10.0.0.9")[0] == 403
    assert commanded(web, client="127.0.0.1")[0] == 200
