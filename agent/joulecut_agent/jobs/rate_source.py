"""Iterations as the sources of rates on this node submit them.

The datagram socket is one, logs are another. A source reads its own format and submits values; the
intake checks them all alike: known GPU, permitted sender, bounded load. A source never commands
anything.
"""

from dataclasses import dataclass
from typing import Protocol

from joulecut_agent.jobs.binding import Sender
from joulecut_wire.messages import IterationReport, PipelineShape

# Names of sources, on the wire and in metrics.
REPORT, LOG = "report", "log"
# Logs show no stages. As one stage all GPUs share one clock, which fits every job.
ONE_STAGE = PipelineShape("", 1, 0)
NO_SENDER = Sender(0, 0)  # of what the agent found by itself


@dataclass(frozen=True, slots=True)
class Submission:
    """One iteration of a log, which the agent's configuration permits to report."""

    report: IterationReport
    sender: Sender
    ended_s: float  # monotonic time of the iteration's end


@dataclass(frozen=True, slots=True)
class Fault:
    """Input that a source cannot use: `text` says what, and what is allowed."""

    sender: Sender
    source: str
    text: str
    uuid: str = ""  # the GPU it was meant for, where that much is known
    foreign: bool = False  # from no process of that GPU's job, which itself has reported nothing
    accepted: bool = False  # of a report that counts, so that the GPU is the sender's


class Inbox(Protocol):
    """Takes what sources found, from any thread. False where it is full: the value is shed."""

    def submit(self, one: Submission | Fault) -> bool: ...
