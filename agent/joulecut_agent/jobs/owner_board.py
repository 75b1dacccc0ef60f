"""Who holds which GPU, where prologs and epilogs of a scheduler look."""

import os
from collections.abc import Mapping

from joulecut_agent.atomic_file import Notice
from joulecut_wire.messages import Allocation, GpuDescription


class Board(Notice):
    """`INDEX UUID held|free JOB`, one GPU a line.

    The first line names the agent's process, so that a file left by a dead one is known as such.
    """

    def write(
        self, gpus: tuple[GpuDescription, ...], held: Mapping[str, str],
        allocations: Mapping[str, Allocation],
    ) -> None:  # fmt: skip
        """Replaces the file where something changed. Never raises: it says so once."""
        lines = [f"agent {os.getpid()}"]
        for gpu in gpus:
            job = allocations[gpu.uuid].job if gpu.uuid in allocations else "-"
            state = "held" if gpu.uuid in held else "free"
            lines.append(f"{gpu.index} {gpu.uuid} {state} {job}")
        self.put("\n".join(lines) + "\n")
