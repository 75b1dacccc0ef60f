"""The configuration of attribution: off where the site names no scheduler, refused in one line."""

from pathlib import Path

import pytest

from joulecut_agent import config
from joulecut_agent.config import HOST_VARIABLE, PORT_VARIABLE
from joulecut_agent.jobs.owner import SOURCES
from joulecut_agent.jobs.settings import AttributionSettings
from joulecut_wire.errors import BadInput


def _load(folder: Path, text: str) -> AttributionSettings:
    (folder / "agent.yaml").write_text("device: simulated\n" + text)
    return config.load(folder / "agent.yaml").attribution


def test_no_scheduler_is_asked_unless_the_site_names_it(tmp_path: Path) -> None:
    found = _load(tmp_path, "")
    assert found == AttributionSettings()
    assert (found.pod_resources, found.api, found.mapping_dir) == (None, None, None)
    assert (found.order, found.bind) == (SOURCES, "owner")


def test_everything_is_read_and_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "10.0.0.1")
    monkeypatch.setenv(PORT_VARIABLE, "6443")
    found = _load(
        tmp_path,
        "attribution:\n"
        "  order: [slurm, kubernetes, report]\n"
        "  kubernetes: {pod_resources: k.sock, pods: api, credentials: c}\n"
        "  slurm: {mapping_dir: map}\n"
        "  proc: proc\n"
        "  cgroups: cgroup\n"
        "reports: {bind: any}\n",
    )
    assert found.order == ("slurm", "kubernetes", "report")
    assert found.pod_resources == tmp_path / "k.sock"
    assert (found.api.host, found.api.port) == ("10.0.0.1", 6443)
    assert found.api.credentials == tmp_path / "c"
    assert found.mapping_dir == tmp_path / "map"
    assert (found.proc, found.cgroups) == (tmp_path / "proc", tmp_path / "cgroup")
    assert found.bind == "any"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("attribution: {order: [slurm, slurm]}\n", ":2: attribution.order"),
        ("attribution: {order: slurm}\n", ":2: attribution.order"),
        ("attribution: {slurm: {dir: x}}\n", ":2: attribution.slurm.mapping_dir"),
        ("attribution: {kubernetes: {pods: kubelet}}\n", ":2: attribution.kubernetes.pods"),
        ("attribution: {kubernetes: {pods: api}}\n", ":2: attribution.kubernetes.pods"),
        ("reports: {bind: nobody}\n", ":2: reports.bind"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str
) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    with pytest.raises(BadInput) as refused:
        _load(tmp_path, text)
    assert place in str(refused.value)
    assert "\n" not in str(refused.value)
