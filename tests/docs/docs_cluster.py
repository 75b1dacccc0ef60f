"""The cluster of simulated GPUs for the commands of the docs."""

import re
import tempfile
from pathlib import Path
from typing import Self

import commands
from running_cluster import NODES, Cluster, until

JOB = "gpt3-175b"  # as the docs call it
NOBODY = "http://127.0.0.1:1"  # a port that nothing of ours, nor of a test's, listens on


class DocsCluster(Cluster):
    """`typed` turns a line of the docs into one for this cluster; leaving it ends everything."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="jcd")), job=JOB)
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self.up()
            self.policy("recommend")
            _, self.url, _ = self.controller()
            asked = ("explain", JOB, "--controller", self.url)
            until(lambda: "Plan 1 " in commands.run(*asked).stdout, "no plan")
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    def typed(self, text: str) -> str:
        """Names of this cluster in place of the docs' own."""
        agent = self.agents[0]
        for old, new in (("9430", self.metrics[0]), ("9440", self.url)):
            text = re.sub(rf"(?<=:){old}\b", new.rpartition(":")[2], text)
        text = text.replace("/etc/joulecut/controller.yaml", "controller.yaml")
        text = text.replace("unix:/run/joulecut/agent.sock", agent)
        text = re.sub(r"\bJOB\b", JOB, re.sub(r"\bNODE\b", NODES[0], text))
        if text.startswith("joulecut report") and not re.search(r"--(store|config)\b", text):
            return f"{text.partition(' #')[0]} --config controller.yaml"
        asks = re.match(r"joulecut (status|explain|doctor|pause|resume|restore)", text)
        if asks and not re.search(r"--(controller|agents?|config)\b", text):
            text = f"{text.partition(' #')[0]} --controller {self.url}"
        elif asks and asks[1] == "restore" and "--controller" not in text:
            # For where no controller answers. At its default address there may be one, of the
            # person who runs these tests, and that would give its GPUs back.
            text = f"{text.partition(' #')[0]} --controller {NOBODY}"
        return text

    def as_before(self) -> None:
        """Ends what a command began: a pause, a release window."""
        commands.run("resume", "--all", "--controller", self.url)
        commands.run("resume", "--agent", self.agents[0])
