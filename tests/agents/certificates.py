"""Real certificates for a test, made by the openssl command.

from certificates import Authority

ca = Authority(tmp_path, "ca")
agent = ca.leaf("agent", "IP:127.0.0.1")
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")  # quick to make


@dataclass(frozen=True)
class Leaf:
    cert: Path
    key: Path
    ca: Path

    def channel(self, address: str, ca: Path | None = None) -> grpc.Channel:
        """Presents this leaf, and believes its own authority or `ca`."""
        return grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(
                (ca or self.ca).read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
            ),
            options=(("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)),
        )


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", *CURVE, "-keyout", self.key, "-out", self.cert,
                 "-subj", f"/CN={name}", "-days", "2")  # fmt: skip
        (folder / f"{name}.index").touch()
        (folder / f"{name}.serial").write_text("1000")

    def leaf(
        self, name: str, *alternatives: str, subject: str = "", expired: bool = False,
        end: str = "20491231000000Z",
    ) -> Leaf:  # fmt: skip
        """`alternatives` as openssl writes them: DNS:name, URI:uri, IP:address."""
        made = Leaf(self.folder / f"{name}.pem", self.folder / f"{name}.key", self.cert)
        request, about = self.folder / f"{name}.csr", self.folder / f"{name}.cnf"
        _openssl("req", "-new", *CURVE, "-keyout", made.key, "-out", request,
                 "-subj", subject or f"/CN={name}")  # fmt: skip
        lines = ["[ca]", f"database={self.folder}/{self.name}.index", "policy=any",
                 f"serial={self.folder}/{self.name}.serial", "default_md=sha256",
                 f"new_certs_dir={self.folder}", "unique_subject=no", "[any]",
                 "commonName=optional", "organizationName=optional", "[leaf]",
                 "basicConstraints=CA:FALSE"]  # fmt: skip
        if alternatives:
            lines.append(f"subjectAltName={','.join(alternatives)}")
        about.write_text("\n".join(lines))
        end = "20200102000000Z" if expired else end
        _openssl("ca", "-batch", "-config", about, "-name", "ca", "-extensions", "leaf", "-notext",
                 "-in", request, "-out", made.cert, "-cert", self.cert, "-keyfile", self.key,
                 "-startdate", "20200101000000Z", "-enddate", end)  # fmt: skip
        return made


def _openssl(*words: str | Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    done = subprocess.run(
        ["openssl", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
