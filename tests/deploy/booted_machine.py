"""A machine that boots systemd: this machine's own root under an overlay, in systemd-nspawn.

    from booted_machine import BootedMachine

What it writes lies in memory and ends with it. Its network is a loopback of its own. Needs root and
Debian's systemd-container; without them the test is skipped.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest
from manifests import ROOT
from other_users import PACKAGES, python_for_others
from running_agent import PATIENCE_S, eventually

PREFIX = "/opt/joulecut"  # as the install script has it
SITE = f"{PREFIX}/site"  # our packages, and those that they import
COMMANDS = {
    "joulecut-agent": "joulecut_agent.main",
    "joulecut-controller": "joulecut_controller.main",
    "joulecut": "joulecut_cli.main",
}


class BootedMachine:
    """`run` in it as its root; leaving the context switches it off."""

    def __init__(self, environment: Mapping[str, str], shared: Path) -> None:
        """Services have `environment`; `shared` is a folder of this machine, at the same path."""
        if os.getuid() != 0 or not shutil.which("systemd-nspawn"):
            pytest.skip("needs root and systemd-nspawn (package systemd-container)")
        self.python = python_for_others()
        self.environment, self.shared = environment, shared
        self.home = Path(tempfile.mkdtemp(prefix="jcn"))
        self.root = self.home / "root"
        self.pid = 0
        self.console = self.home / "console"

    def __enter__(self) -> Self:
        try:
            self._mount()
            self._furnish()
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _mount(self) -> None:
        # Not on the disk of the lower layer, which an upper one must not lie in.
        layers = self.home / "layers"
        layers.mkdir()
        self.root.mkdir()
        self._mounted("-t", "tmpfs", "layers", str(layers))
        for name in ("upper", "work"):
            (layers / name).mkdir()
        where = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        self._mounted("-t", "overlay", "-o", where, "root", str(self.root))

    def _mounted(self, *argv: str) -> None:
        done = subprocess.run(["mount", *argv], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no overlay may be mounted here: {done.stderr.strip()}")

    def _furnish(self) -> None:
        (self.root / "etc/machine-id").unlink(missing_ok=True)
        (self.root / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
        for name, module in COMMANDS.items():
            path = self.root / PREFIX[1:] / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            paths = ":".join([f"{SITE}/{package}" for package in (*PACKAGES, "purelib")])
            path.write_text(
                f'#!/bin/sh\nexport PYTHONPATH={paths}\nexec {self.python} -m {module} "$@"\n'
            )
            path.chmod(0o755)
        for unit in ("agent", "keeper"):
            folder = self.root / f"etc/systemd/system/joulecut-{unit}.service.d"
            folder.mkdir(parents=True)
            words = "".join(f"Environment={n}={w}\n" for n, w in self.environment.items())
            (folder / "test.conf").write_text(
                f"[Service]\n{words}ReadWritePaths={self.shared}\nPrivateTmp=no\n"
            )

    def _boot(self) -> None:
        # Homes are hidden from our units: what lies in one is bound to where they may look.
        binds = {f"{SITE}/{package}": ROOT / package for package in PACKAGES}
        binds[f"{SITE}/purelib"] = Path(sysconfig.get_path("purelib"))
        argv = [
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", "--private-network",
            "--register=no", "--keep-unit", f"--machine=jc{uuid.uuid4().hex[:8]}",
            "--link-journal=no",
            *(f"--bind-ro={path}:{target}" for target, path in binds.items()),
            f"--bind={self.shared}", f"--bind-ro={ROOT}", "systemd.unit=basic.target",
        ]  # fmt: skip
        with self.console.open("wb") as console:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")

        def booted() -> bool:
            if self.process.poll() is not None:
                said = self.console.read_text(errors="replace")
                pytest.skip(f"nothing boots here: {said.strip()[-200:]}")
            self.pid = next(filter(_is_systemd, map(int, children.read_text().split())), 0)
            state = self.run("systemctl", "is-system-running").strip() if self.pid else ""
            return state in {"running", "degraded"}  # degraded: by units that are not ours

        eventually("systemd", booted)

    def run(self, *argv: str, user: str = "", groups: str = "") -> str:
        """What a command in the machine prints."""
        who = ["setpriv", "--reuid", user, "--regid", "nogroup"] if user else []
        who += ["--groups", groups] if groups else ["--clear-groups"] if user else []
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--", *who, *argv],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd="/",
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        return done.stdout + done.stderr

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def __exit__(self, *_: object) -> None:
        process = getattr(self, "process", None)
        if process is not None:
            process.terminate()  # as a power cut
            try:
                process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in ("root", "layers"):
            subprocess.run(["umount", "-l", self.home / name], check=False, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)


def _is_systemd(pid: int) -> bool:
    """And not a process on the way to it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "systemd\n"
    except OSError:
        return False
