"""Decoder layers in torch, one pass after another, for a bench to measure.

Torch is handed in, never imported: everything else of the study works without it, and the
same layers run on a CPU where somebody only wants to try them.
"""

from collections.abc import Callable
from typing import Any

from joulecut_lab.study.cell import Cell
from joulecut_sim.layer import Dtype


class TorchWorker:
    """Decoder layers in torch, on a CUDA device or (for trying things) on the CPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._step: Callable[[], None] | None = None
        cuda = self._device.type == "cuda"
        major, minor = torch.cuda.get_device_capability(self._device) if cuda else (0, 0)
        self.dtypes = _dtypes(major, minor) if cuda else ("fp32", "bf16")

    def prepare(self, cell: Cell) -> str:
        self._step = None
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()
        try:
            self._step = _layer(self._torch, self._device, cell)
            self._step()
            self._finish()
        except (self._torch.OutOfMemoryError, MemoryError):
            self._step = None
            return "does not fit the card's memory"
        return ""

    def start(self, passes: int) -> Callable[[], bool]:
        assert self._step is not None
        for _ in range(passes):
            self._step()
        if self._device.type != "cuda":
            return lambda: True
        event = self._torch.cuda.Event()
        event.record()
        finished: Callable[[], bool] = event.query
        return finished

    def _finish(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def close(self) -> None:
        self._step = None


def _dtypes(major: int, minor: int) -> tuple[Dtype, ...]:
    """By compute capability: tf32 and bf16 from Ampere (8.0), fp8 from Ada (8.9)."""
    found: tuple[Dtype, ...] = ("fp32", "fp16")
    if major >= 8:
        found = ("fp32", "tf32", "fp16", "bf16")
    return (*found, "fp8") if (major, minor) >= (8, 9) else found


def _layer(torch: Any, device: Any, cell: Cell) -> Callable[[], None]:
    """A function that queues one pass of the layer."""
    shape, training = cell.layer, cell.which == "training"
    wide = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
    kind = wide.get(cell.dtype, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = cell.dtype == "tf32"
    product = _product_fp8(torch) if cell.dtype == "fp8" else torch.nn.functional.linear
    torch.manual_seed(0)

    def weight(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, device=device, dtype=kind) * columns**-0.5
        return values.requires_grad_(training)

    d, inner, heads = shape.d_model, shape.d_ffn, shape.heads
    qkv, out, up, down = weight(3 * d, d), weight(d, d), weight(inner, d), weight(d, inner)
    x = torch.randn(shape.batch, shape.sequence, d, device=device, dtype=kind)
    x.requires_grad_(training)
    upstream = torch.ones_like(x)
    functional = torch.nn.functional
    learnt = [qkv, out, up, down, x]

    def forward() -> Any:
        mixed = product(functional.layer_norm(x, (d,)), qkv)
        parts = mixed.view(shape.batch, shape.sequence, 3, heads, d // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        flat = seen.transpose(1, 2).reshape(shape.batch, shape.sequence, d)
        middle = x + product(flat, out)
        grown = functional.gelu(product(functional.layer_norm(middle, (d,)), up))
        return middle + product(grown, down)

    def step() -> None:
        if not training:
            with torch.no_grad():
                forward()
            return
        for one in learnt:
            one.grad = None
        forward().backward(upstream)

    return step


def _product_fp8(torch: Any) -> Callable[[Any, Any], Any]:
    """`x @ w.T` in 8-bit floats, forward (e4m3) and backward (e5m2 by e4m3), results in bf16.

    Scales are 1: the values do not matter here, their cost does. The second operand of the
    8-bit product must be stored by columns.
    """

    def times(left: Any, right: Any, left_kind: Any) -> Any:
        """left [m, k] @ right [k, n]."""
        one = torch.ones((), device=left.device)
        stored = right.to(torch.float8_e4m3fn).t().contiguous().t()
        narrow = left.to(left_kind).contiguous()
        return torch._scaled_mm(narrow, stored, one, one, out_dtype=torch.bfloat16)

    class Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(saved: Any, x: Any, w: Any) -> Any:
            saved.save_for_backward(x, w)
            flat = times(x.reshape(-1, x.shape[-1]), w.t(), torch.float8_e4m3fn)
            return flat.view(*x.shape[:-1], w.shape[0])

        @staticmethod
        def backward(saved: Any, upstream: Any) -> Any:
            x, w = saved.saved_tensors
            flat = upstream.reshape(-1, upstream.shape[-1])
            of_x = times(flat, w, torch.float8_e5m2).view(x.shape)
            of_w = times(flat.t(), x.reshape(-1, x.shape[-1]), torch.float8_e5m2)
            return of_x, of_w

    applied: Callable[[Any, Any], Any] = Product.apply
    return applied
