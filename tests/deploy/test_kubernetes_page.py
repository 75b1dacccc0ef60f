"""What docs/kubernetes.md says to type, tried as far as it goes without a cluster."""

import re
import shlex
from pathlib import Path

import yaml
from manifests import CHART, ROOT, helm

from joulecut_agent.main import COMMANDS

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
LINES = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]


def test_values_on_the_page_are_values_of_the_chart(tmp_path: Path) -> None:
    named = re.search(r"```yaml\n(# control\.yaml\n.*?)```", PAGE, re.DOTALL)
    assert named
    (tmp_path / "control.yaml").write_text(named[1])
    tried = 0
    for line in LINES:
        argv = shlex.split(line)
        if argv[:1] != ["helm"] or argv[1] == "uninstall":
            continue
        assert argv[3] == "deploy/helm/joulecut"
        rest = [word for word in argv[4:] if word != "--reset-then-reuse-values"]
        rest = [str(tmp_path / word) if word == "control.yaml" else word for word in rest]
        done = helm("template", argv[2], CHART, *rest)
        assert done.returncode == 0, (line, done.stderr)
        tried += 1
    assert tried == 2
    for given in re.findall(r"`--set (\S+=\S+)`", PAGE):
        assert helm("template", "j", CHART, "--set", given).returncode == 0, given


def test_every_value_that_is_named_exists() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    roots = "|".join(values)
    named = set(re.findall(rf"`((?:{roots})(?:\.\w+)+)", PAGE))
    assert len(named) > 10
    for name in named:
        if name.startswith(("agent.config.", "controller.config.")):
            continue  # docs/agent.md, docs/controller.md
        if name.endswith(".joulecut.joulecut"):
            continue  # a name in a certificate
        node = values
        for key in name.split("."):
            assert key in node, name
            node = node[key]


def test_files_and_commands_exist() -> None:
    for path in set(re.findall(r"\bdeploy/[\w./-]*\w", PAGE)):
        assert (ROOT / path).exists(), path
    said = re.findall(r"`joulecut-agent (\w+)`", PAGE)
    assert said
    assert set(said) <= set(COMMANDS)
