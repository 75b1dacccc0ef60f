"""A row as a study measures it, for all that only differ from it by little."""

from joulecut_lab.study.row import Row

ROW = Row(
    basis="measured",
    card="NVIDIA A30",
    driver="550.54.15",
    uuid="GPU-1",
    model="gpt-125m",
    d_model=768,
    heads=12,
    d_ffn=3072,
    sequence=512,
    batch=4,
    dtype="fp16",
    which="training",
    clock_asked_mhz=900,
    clock_mhz=899.5,
    time_s=0.0025,
    power_w=100.0,
    energy_j=0.25,
    flops=1e11,
    temperature_celsius=None,
    capped=False,
    stable=True,
    windows=3,
    time_spread=0.0,
    power_spread=0.001,
    switching_j=None,
    clock_j=None,
    leakage_j=None,
    memory_j=None,
)
