"""What of the simulated back end the conformance suite cannot ask of every device."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joulecut_agent.ports.failure import Gone, Unsupported
from joulecut_sim.card import StateFile
from joulecut_sim.device import backend
from joulecut_wire.errors import BadInput


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colour": "red"}, "simulated.colour: unknown key"),
        ({"sku": "h100"}, "a100-sxm, a40"),
        ({"cards": 1000}, "from 1 to 64"),
        ({"set_latency_s": -1}, "seconds from 0 to 10"),
        ({"permission": "maybe"}, "full | none"),
        ({"state": 1}, "simulated.state: 1"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as told:
        backend.open_reader(options, str(tmp_path))
    assert words in str(told.value)
    with pytest.raises(BadInput):
        backend.open_writer(options, str(tmp_path))


def test_an_agent_that_loads_it_stays_light() -> None:
    heavy = "import sys, joulecut_sim.device; print({'numpy', 'scipy', 'grpc'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def test_refusals_have_their_class(tmp_path: Path) -> None:
    writer = backend.open_writer({"cards": 2, "node": "n"}, str(tmp_path))
    with StateFile.open(tmp_path / "gpus.state") as state:
        for low, high in ((0, 1006), (217, 1005), (1005, 900), (0, 0), (0, 99_999)):
            with pytest.raises(Unsupported):
                writer.lock(state.uuid(0), low, high)
        with pytest.raises(Unsupported):
            writer.lock("GPU-of-somebody-else", 0, 1005)
        assert writer.clocks_mhz("GPU-of-somebody-else") == ()
        assert writer.uncontrollable("GPU-of-somebody-else")
        state.put(1, lost=True)
        with pytest.raises(Gone):
            writer.lock(state.uuid(1), 0, 1005)
        with pytest.raises(Gone):
            writer.reset(state.uuid(1))
        state.put(0, mig=True)
        assert writer.uncontrollable(state.uuid(0)) == "MIG is on"
        assert all(state.asked_mhz(index) == (0, 0) for index in range(2))
    writer.close()
