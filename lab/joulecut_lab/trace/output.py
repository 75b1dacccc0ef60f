"""Files of `joulecut model trace`: Chakra traces, and the calibrated system."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from joulecut_cli import outfile
from joulecut_lab.model.system import System
from joulecut_lab.model_command.calibrating import system_yaml
from joulecut_lab.trace import chakra
from joulecut_lab.trace.chakra import Value
from joulecut_lab.trace.energy import limited_w
from joulecut_lab.trace.kernels import Kernel, Recording
from joulecut_lab.trace.rates import Measured, calibrated
from joulecut_lab.trace.shown import AtClock
from joulecut_wire.errors import BadInput

Costs = dict[str, Value]


def check(options: Namespace) -> None:
    """Every output, before anything is read. Raises BadInput."""
    try:
        if options.chakra is not None:
            Path(options.chakra).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{options.chakra}: {error.strerror}"
        raise BadInput("--chakra", what, "a folder that can be made") from None
    if options.calibrated is not None:
        if Path(options.calibrated).suffix != ".yaml":
            what = f'"{options.calibrated}" is no .yaml file'
            raise BadInput("--calibrated", what, "a name in .yaml")
        outfile.checked("--calibrated", Path(options.calibrated))


def write(
    options: Namespace,
    recordings: Sequence[Recording],
    last: AtClock,
    system: System | None,
    card: Measured | None,
) -> None:
    """What the flags ask for, at one clock. Raises BadInput."""
    if options.chakra is not None:
        _chakra(Path(options.chakra), recordings, last, system)
    if options.calibrated is not None and system is not None and card is not None:
        notes = [f"{key}: measured by {n} kernels of a trace" for key, n in card.kernels.items()]
        text = system_yaml(calibrated(system, card), notes)
        outfile.write("--calibrated", Path(options.calibrated), text)


def _costs(kernel: Kernel, seconds: float, clock_mhz: int | None, system: System | None) -> Costs:
    """Clock, power and energy of a kernel, as far as they are known."""
    if clock_mhz is None:
        return {}
    if system is None:
        return {"clock_mhz": clock_mhz}
    watts = limited_w(system, kernel.kind, clock_mhz)
    return {"clock_mhz": clock_mhz, "power_w": watts, "energy_j": watts * seconds}


def _chakra(
    folder: Path, recordings: Sequence[Recording], one: AtClock, system: System | None
) -> None:
    """`trace.RANK.et`, as ASTRA-sim and the Chakra tools expect."""
    for recording, played in zip(recordings, one.played, strict=True):
        extra = [
            _costs(kernel, duration_s, one.clock_mhz, system)
            for kernel, duration_s in zip(recording.kernels, played.duration_s, strict=True)
        ]
        raw = chakra.written(recording, played.start_s, played.duration_s, extra)
        outfile.write("--chakra", folder / f"trace.{recording.rank}.et", raw)
