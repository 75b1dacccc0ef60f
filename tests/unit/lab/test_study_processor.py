"""`joulecut study layer --device cpu`: sensors as Linux shows them, and a sweep by torch."""

import time
from pathlib import Path
from threading import Event, Thread

import pytest

from joulecut_agent.ports.failure import DeviceError
from joulecut_cli.main import dispatch
from joulecut_lab.study import processor
from joulecut_lab.study.cell import Cell
from joulecut_lab.study.layer import sweep
from joulecut_lab.study.measure import Rule
from joulecut_lab.study.processor import AllowedClock, Sensors
from joulecut_lab.study.row import write
from joulecut_sim.layer import shape
from joulecut_wire.errors import Unavailable

RANGE_UJ = 1_000_000
POWER_W = 50.0


def machine(root: Path, packages: int = 1, mhz: int = 2000) -> Path:
    """The files of a machine of two cores. A package has a part of its own, which counts in it."""
    for number in range(packages):
        for name, domain in ((f"package-{number}", f"{number}"), ("core", f"{number}:0")):
            folder = root / f"sys/class/powercap/intel-rapl:{domain}"
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{name}\n")
            (folder / "energy_uj").write_text("900000\n")
            (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    for core in range(2):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{1000 * (mhz - 100 * core)}\n")
        (folder / "scaling_max_freq").write_text(f"{1000 * mhz}\n")
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("model name\t: A Processor\ncpu MHz\t: 1800.4\n")
    return root


def test_packages_add_up_and_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    root = machine(tmp_path, packages=2)
    sensors = Sensors(root)
    assert sensors.name == "A Processor"
    assert sensors().energy_j == 0.0
    for number, now in ((0, 950_000), (1, 100_000)):
        (root / f"sys/class/powercap/intel-rapl:{number}/energy_uj").write_text(f"{now}\n")
    seen = sensors()
    assert seen.energy_j == pytest.approx(0.05 + 0.2)
    assert seen.clock_sm_mhz == 1950


def test_without_frequencies_the_clock_is_that_of_the_kernels_list(tmp_path: Path) -> None:
    root = machine(tmp_path)
    for file in root.glob("sys/devices/system/cpu/cpu*/cpufreq/*"):
        file.unlink()
    sensors = Sensors(root)
    assert (sensors().clock_sm_mhz, sensors.allowed_mhz()) == (1800, 0)


def test_without_a_counter_or_the_right_to_read_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no energy counter"):
        Sensors(tmp_path)
    root = machine(tmp_path)
    (root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    with pytest.raises(DeviceError, match="energy_uj: No such file"):
        Sensors(root)


def test_a_clock_that_others_move_ends_the_sweep(tmp_path: Path) -> None:
    root = machine(tmp_path)
    clocks = AllowedClock(Sensors(root))
    assert clocks.choices_mhz() == (2000,)
    clocks.check()
    for file in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"):
        file.write_text("1500000\n")
    with pytest.raises(Unavailable, match="from 2000 to 1500 MHz"):
        clocks.check()


@pytest.mark.long
def test_torch_on_the_processor_teaches_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter is made up, the layers are torch's own."""
    pytest.importorskip("torch")
    counter, ended = machine(tmp_path) / "sys/class/powercap/intel-rapl:0/energy_uj", Event()

    def count() -> None:
        began_s, new = time.monotonic(), counter.with_suffix(".new")
        while not ended.wait(0.02):
            new.write_text(f"{int(1e6 * POWER_W * (time.monotonic() - began_s))}\n")
            new.replace(counter)

    monkeypatch.setattr(processor, "ROOT", tmp_path)
    thread, out = Thread(target=count), tmp_path / "cpu.csv"
    thread.start()
    try:
        bench, clocks = processor.open_processor()
        layer = Cell(shape("gpt-125m", 128, 1), "fp32", "training")
        once = Rule(steps=5, windows=1, windows_max=1)  # what runs beside moves the times
        (row,) = sweep(bench, clocks, [layer], clocks.choices_mhz(), rule=once, say=print)
    finally:
        ended.set()
        thread.join()
    assert (row.basis, row.card, row.clock_asked_mhz) == ("measured", "A Processor", 2000)
    assert row.power_w == pytest.approx(POWER_W, rel=0.1)
    write(out, [row])
    profile = tmp_path / "profile.csv"
    rows = [f"0,backward,{mhz},{2000 / mhz},{mhz / 10}" for mhz in range(1200, 2001, 100)]
    profile.write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]))
    assert dispatch(["fit", str(profile), "--probes", "2000,1500", "--also", str(out)]) == 0
