"""A controller on the network: mutual TLS to its agent, TLS and a password at its page."""

import base64
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bcrypt
import commands
import yaml
from certificates import Authority
from running_agent import PATIENCE_S, RunningAgent, eventually

from joulecut_controller.main import main

COMMAND = str(Path(sys.executable).with_name("joulecut-controller"))
END_UNIX_S = datetime(2049, 12, 31, tzinfo=UTC).timestamp()  # of every leaf
POLICY = "apiVersion: joulecut/v1\nkind: Policy\nmode: recommend\njobs: []\n"


def _text(url: str, ca: Path, password: str) -> str:
    token = base64.b64encode(f"ops:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})
    context = ssl.create_default_context(cafile=ca)
    with urllib.request.urlopen(request, context=context, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def _get(url: str, ca: Path, password: str = "") -> tuple[int, Any]:
    try:
        return 200, json.loads(_text(url, ca, password))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_controller_on_the_network() -> None:
    tls = {"cert": "agent.pem", "key": "agent.key", "client_ca": "ca.pem"}
    with RunningAgent(cards=1, tls=tls) as node:
        ca = Authority(node.home, "ca")
        ca.leaf("agent", "IP:127.0.0.1")
        ca.leaf("controller", "DNS:controller.test", "IP:127.0.0.1")
        node.start()
        own = {"cert_file": "controller.pem", "key_file": "controller.key"}
        hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        web = {"tls_server_config": own, "basic_auth_users": {"ops": hashed}}
        (node.home / "web.yaml").write_text(yaml.safe_dump(web))
        (node.home / "policy.yaml").write_text(POLICY)
        config = {
            "agents": [node.ready["grpc"]],
            "policy": "policy.yaml",
            "store": "sqlite:///controller.db",
            "listen": {"http": "0.0.0.0:0"},
            "interval_s": 0.3,
            "tls": {"cert": "controller.pem", "key": "controller.key", "ca": "ca.pem"},
            "web_config": "web.yaml",
        }
        path = node.home / "controller.yaml"
        path.write_text(yaml.safe_dump(config))
        argv = [COMMAND, "--config", str(path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as controller:
            try:
                words = dict(w.split("=", 1) for w in controller.stdout.readline().split()[2:])
                port = words["https"].rpartition(":")[2]
                board = f"https://127.0.0.1:{port}/api/v1/board"
                assert _get(board, ca.cert, "wrong")[0] == 401

                def sees() -> bool:
                    status, shown = _get(board, ca.cert, "secret")
                    return status == 200 and bool(shown["nodes"][0]["connected"])

                eventually("the agent on the board", sees)
                shown = _text(f"https://127.0.0.1:{port}/metrics", ca.cert, "secret")
                for use in ("grpc", "http"):
                    gauge = f'joulecut_certificate_expires_timestamp_seconds{{use="{use}"}} '
                    (ends,) = (line for line in shown.splitlines() if line.startswith(gauge))
                    assert float(ends.split()[1]) == END_UNIX_S
            finally:
                controller.terminate()
                assert controller.wait(PATIENCE_S) == 0

        config.pop("web_config")
        path.write_text(yaml.safe_dump(config))
        done = commands.run("--config", str(path), main=main)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "0.0.0.0 without encryption" in done.stderr
