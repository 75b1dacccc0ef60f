"""`joulecut deploy WHAT DIR`: writes the files that install Joulecut, as the release has them.

Units, chart, manifests, Slurm scripts, dashboards and rules. An existing file is never overwritten.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput, Unavailable

SHIPPED = Path(__file__).with_name("shipped")  # of a wheel
CHECKOUT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "queries.py", "tests")
# The folder of each, and the next command.
KINDS = {
    "systemd": ("deploy/systemd", "{dir}/install --package WHEEL"),
    "helm": ("deploy/helm/joulecut", "helm install joulecut {dir} -n joulecut"),
    "kustomize": ("deploy/kubernetes", "kubectl apply -k {dir}/overlays/metrics-only"),
    "slurm": (
        "deploy/slurm",
        "cp -r {dir}/prolog.d {dir}/epilog.d /etc/slurm; slurm.conf as docs/slurm.md says",
    ),
    "grafana": ("grafana", "prometheus --config.file={dir}/prometheus.yaml"),
}


def run(argv: list[str]) -> int:
    """Raises BadInput where the directory is not empty or cannot be written."""
    parser = Parser(
        "joulecut deploy",
        "Writes units, chart, manifests, Slurm scripts or dashboards.",
    )
    parser.add_argument("what", metavar="WHAT", choices=tuple(KINDS), help=", ".join(KINDS))
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or an empty directory")
    given = parser.parse_args(argv)
    folder: Path = given.folder
    source, after = KINDS[given.what]
    count = write(source, folder)
    print(f"{count} files in {folder}. Next: {after.format(dir=folder)}")
    return FINE


def write(source: str, folder: Path) -> int:
    """Copies a folder of the release; returns the number of files. Scripts are executable."""
    origin = next((root / source for root in (SHIPPED, CHECKOUT) if (root / source).is_dir()), None)
    if origin is None:
        raise Unavailable(f"this installation has no {source}: install the wheel of a release")
    try:
        folder = Path(os.path.realpath(folder))  # `new/..` is there without `new`
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(str(folder), "is not empty", "a new or an empty directory")
        return _written(origin, folder)
    except OSError as error:
        raise BadInput(str(folder), error.strerror or "cannot be written", "a directory") from None


def _written(origin: Path, folder: Path) -> int:
    """All or nothing: half a chart would install half a controller. Raises OSError."""
    ours = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".joulecut-") as made:
            count = _copied(origin, Path(made) / "whole")
            for path in (Path(made) / "whole").iterdir():
                path.rename(folder / path.name)
    except OSError:
        for place in ours:
            with suppress(OSError):
                place.rmdir()
        raise
    return count


def _copied(origin: Path, folder: Path) -> int:
    """Raises OSError, the first one where several files fail."""
    try:
        shutil.copytree(origin, folder, ignore=IGNORED)
    except shutil.Error as error:
        raise OSError(0, error.args[0][0][2]) from None
    written = [path for path in folder.rglob("*") if path.is_file()]
    for path in written:
        with path.open("rb") as file:
            if file.read(2) == b"#!":  # an installer of wheels drops the mode
                path.chmod(0o755)
    return len(written)
