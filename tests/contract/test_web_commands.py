"""Who may command the controller: by password, by certificate, by the kernel over loopback."""

import asyncio
import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import bcrypt
import boards
import pytest
import yaml
from certificates import Authority
from serving import Serving

from joulecut_controller.orders import Done, Order
from joulecut_controller.web.app import build
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel
from joulecut_controller.web.senders import Roles
from joulecut_wire.web_config import WebConfig

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4, b"2a")).decode()
ALICE = Roles(command=("alice",))


def web_config(folder: Path, **config: Any) -> WebConfig:
    (folder / "web.yaml").write_text(yaml.safe_dump(config))
    return WebConfig(folder / "web.yaml", pytest.fail)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def commanded(
    web: WebConfig | None,
    *,
    client: str,
    authorization: str = "",
    connected: bool = False,
    roles: Roles = ALICE,
) -> tuple[int, Any, list[Order]]:
    """A pause posted by a client of this address; `connected` to a port of this process."""
    if connected:
        family = socket.AF_INET6 if ":" in client else socket.AF_INET
        with (
            socket.create_server((client, 0), family=family) as server,
            socket.create_connection(server.getsockname()[:2]) as here,
        ):
            address, port = here.getsockname()[:2], server.getsockname()[1]
            return _commanded(web, address, port, authorization, roles)
    return _commanded(web, (client, 40000), 9440, authorization, roles)


def _commanded(
    web: WebConfig | None, client: tuple[str, int], port: int, authorization: str, roles: Roles
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
        await build(Publisher(), web=web, roles=roles, channel=channel)(scope, receive, send)

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


@pytest.mark.parametrize("roles", [Roles(), ALICE])
def test_a_user_without_a_role_reads_and_no_more(tmp_path: Path, roles: Roles) -> None:
    web = web_config(tmp_path, basic_auth_users={"alice": HASH, "prometheus": HASH})
    for user in ("alice", "prometheus"):
        status, said, taken = commanded(
            web, client="10.0.0.9", authorization=basic(user, PASSWORD), roles=roles
        )
        if user in roles.command:
            assert status == 200, said
            continue
        assert (status, taken) == (403, [])
        assert f"name {user} under roles.command" in said["error"]
    # Root and the controller's own user, by the kernel's word; the password is asked for as well.
    reader = basic("prometheus", PASSWORD)
    found = commanded(web, client="127.0.0.1", authorization=reader, connected=True, roles=roles)
    assert [order.by for order in found[2]] == [f"bob (prometheus, loopback, uid {os.geteuid()})"]


def test_a_certificate_commands_by_the_names_in_it(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    ca.leaf("server", "IP:127.0.0.1")
    web = web_config(
        tmp_path,
        tls_server_config={
            "cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "ca.pem",
            "client_auth_type": "RequireAndVerifyClientCert",
        },
    )  # fmt: skip
    taken: list[Order] = []

    async def obey(order: Order) -> Done:
        taken.append(order)
        return Done("done")

    headers = {"content-type": "application/json", "x-joulecut-command": "1"}
    headers |= {"via": "a proxy", "authorization": basic("oncall.test", PASSWORD)}  # both claims
    roles = Roles(command=("oncall.test",))
    with Serving(boards.board(), obey=obey, web=web, roles=roles) as served:
        for name, status in (("oncall.test", 200), ("prometheus.test", 403), ("on", 403)):
            leaf = ca.leaf(name, f"DNS:{name}")
            context = ssl.create_default_context(cafile=ca.cert)
            context.load_cert_chain(leaf.cert, leaf.key)
            line = http.client.HTTPSConnection("127.0.0.1", served.server.port, context=context)
            line.request("POST", "/api/v1/pause", '{"all": true}', headers)
            assert line.getresponse().status == status, name
            line.close()
    assert [order.by for order in taken] == ["oncall.test"]


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_without_a_login_our_own_user_commands_over_loopback(client: str) -> None:
    status, said, taken = commanded(None, client=client, connected=True)
    assert status == 200, said
    assert [order.by for order in taken] == [f"bob (loopback, uid {os.geteuid()})"]


@pytest.mark.parametrize(
    ("client", "why"),
    [("10.0.0.9", "this sender may read only"), ("127.0.0.1", "only root and the user")],
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


OTHER_UID = 65534
AS_OTHER = """
import sys, urllib.request
mark = {"content-type": "application/json", "x-joulecut-command": "1"}
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.argv[2].encode(), mark))
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_another_user_of_the_machine_commands_nothing() -> None:
    with Serving(boards.board()) as served:
        for path, body in (("jobs/gpt3-175b/pause", "{}"), ("restore", '{"all": true}')):
            url = f"{served.url}/api/v1/{path}"
            said = subprocess.check_output(
                ["/usr/bin/python3", "-c", AS_OTHER, url, body],
                text=True, cwd="/", user=OTHER_UID, group=OTHER_UID,
            )  # fmt: skip
            assert said.startswith("403"), said
        mark = served.post("/api/v1/restore", b'{"all": true}', origin="http://x")
        assert mark.status == 403
