"""How the fake library is made: its layout, its symbols, its tool, and nothing undefined in it."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pynvml

import layout
from fake_library import build, own_symbols
from fixture import FakeNvml
from nvml_codes import (
    NOT_SUPPORTED,
    UNINITIALIZED,
)

HERE = Path(__file__).parent


def test_python_and_c_agree_on_the_layout(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Offsets, not only sizes: two swapped fields of one type would go unseen otherwise."""
    structs = {
        "gpu_state": layout.Gpu,
        "motion": layout.Motion,
        "sample": layout.Sample,
        "gpu_process": layout.GpuProcess,
        "foreign_writer": layout.ForeignWriter,
        "hook": layout.Hook,
        "write_record": layout.WriteRecord,
        "call_record": layout.CallRecord,
        "event": layout.Event,
        "client": layout.Client,
        "state": layout.State,
    }
    lines = [
        f'printf("%zu\\n", offsetof(struct {struct}, {field[0]}));'
        for struct, mirror in structs.items()
        for field in mirror._fields_
    ]
    offsets = [
        getattr(mirror, field[0]).offset for mirror in structs.values() for field in mirror._fields_
    ]
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "state.h"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", f"-I{HERE}", str(source), "-o", str(program)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in told.split()] == offsets
    assert (tmp_path / "gpus.state").stat().st_size == offsets[-1] + ctypes.sizeof(
        layout.CallRecord * layout.CALLS_MAX
    )


def test_every_symbol_of_the_binding_is_there(fake_nvml: FakeNvml) -> None:
    """Real, or "not supported" where there is nothing to say; and the hooks reach all of them."""
    source = Path(pynvml.__file__).read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', source)))
    assert len(names) > 300
    library = ctypes.CDLL(str(fake_nvml.library_dir / "libnvidia-ml.so.1"))
    assert [name for name in names if not hasattr(library, name)] == []  # hasattr is dlsym
    stubs = sorted(set(names) - own_symbols())
    assert len(stubs) > 200
    script = f"""
h = n.nvmlDeviceGetHandleByIndex(1)
answer = [sorted({{getattr(n.nvmlLib, name)(h) for name in {stubs}}})]
answer.append(sorted({{getattr(n.nvmlLib, name)(None) for name in {stubs}}}))
n.nvmlShutdown()
answer.append(sorted({{getattr(n.nvmlLib, name)(h) for name in {stubs}}}))
"""
    assert fake_nvml.ask(script) == [[NOT_SUPPORTED], [NOT_SUPPORTED], [UNINITIALIZED]]
    fake_nvml.lose(1)
    fake_nvml.set_error(stubs[0], 999)
    told = fake_nvml.ask(f"""
h = [n.nvmlDeviceGetHandleByIndex(0)] * 2
answer = [n.nvmlLib.{stubs[0]}(h[0]), n.nvmlLib.{stubs[1]}(h[0])]
""")
    assert told == [999, NOT_SUPPORTED]


def test_no_call_does_what_c_leaves_undefined(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """A run of everything under the sanitizer: it ends the process at the first fault."""
    folder = build(flags=("-fsanitize=undefined", "-fno-sanitize-recover=all"))
    fake_nvml.set_load(0, 1.0)
    fake_nvml.set_ambient(0, 60)
    fake_nvml.set_traffic(0, nvlink_tx=6e11, nvlink_rx=6e11, pcie_tx=6e10, pcie_rx=6e10)
    fake_nvml.set_foreign_writer(7, clock_mhz=900, limit_w=150, every_s=0.001)
    fake_nvml.set_error("nvmlDeviceGetName", 999, probability=0.5, seed=2**64 - 1)
    fake_nvml.advance(1e6)
    done = subprocess.run(
        [sys.executable, "-c", _TOUR],
        env={**fake_nvml.environment(), "LD_LIBRARY_PATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 30


_TOUR = """
import pynvml as n
n.nvmlInit()
answered = 0
for i in (0, 7):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceSetGpuLockedClocks(h, 210, 1005)
    for name in dir(n):
        if name.startswith("nvmlDeviceGet"):
            try:
                getattr(n, name)(h)
                answered += 1
            except (n.NVMLError, TypeError):
                pass
    n.nvmlDeviceGetFieldValues(h, [(f, s) for f in range(310) for s in (0, 7, 0xffffffff)])
    for kind in range(12):
        for name in ("Samples", "ViolationStatus", "TemperatureThreshold", "NvLinkState"):
            try:
                getattr(n, "nvmlDeviceGet" + name)(h, *([kind, 0] if name == "Samples" else [kind]))
            except n.NVMLError:
                pass
    events = n.nvmlEventSetCreate()
    n.nvmlDeviceRegisterEvents(h, 8, events)
    try:
        n.nvmlEventSetWait_v2(events, 1)
    except n.NVMLError_Timeout:
        n.nvmlEventSetFree(events)
    for clock in range(4):
        n.nvmlDeviceGetClockInfo(h, clock), n.nvmlDeviceGetMaxClockInfo(h, clock)
    n.nvmlDeviceResetGpuLockedClocks(h)
n.nvmlShutdown()
print(answered)
"""
