"""Money on the command line: the flags of prices, and what a plan is worth in words."""

from argparse import Namespace, _ActionsContainer
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from joulecut_engine.money import GPU_HOUR, KWH, PUE, Iteration, Prices, Worth, least_cost, worth
from joulecut_wire.flags import number
from joulecut_wire.quantity import CURRENCY, PRICE_MAX, PUE_MAX

FLAGS = {"gpu_hour": "--gpu-hour", "kwh": "--kwh", "pue": "--pue"}


def add_price_flags(parser: _ActionsContainer) -> None:
    """`--gpu-hour`, `--kwh`, `--pue`; a flag that is not given is None."""
    price = number(0.0, PRICE_MAX)
    parser.add_argument(
        "--gpu-hour", type=price, metavar="PRICE", help=f"of one GPU-hour (default {GPU_HOUR:g})"
    )
    parser.add_argument("--kwh", type=price, metavar="PRICE", help=f"of one kWh (default {KWH:g})")
    parser.add_argument("--currency", metavar="WORD", type=CURRENCY, help="shown beside amounts")
    parser.add_argument(
        "--pue", type=number(1.0, PUE_MAX), metavar="RATIO",
        help=f"power usage effectiveness (default {PUE:g})",
    )  # fmt: skip


def given_prices(options: Namespace, beside: Prices | None = None) -> Prices:
    """Flags before `beside`, the prices of a policy; defaults for the rest."""
    known = Prices(assumed=tuple(FLAGS)) if beside is None else beside
    flags = {name: getattr(options, name) for name in FLAGS}
    return Prices(
        **{name: getattr(known, name) if flag is None else flag for name, flag in flags.items()},
        host_power_w=known.host_power_w,
        hour="" if options.kwh is not None else known.hour,
        currency=known.currency if options.currency is None else options.currency,
        assumed=tuple(name for name in known.assumed if flags[name] is None),
    )


def prices_text(prices: Prices, keys: str = "flags") -> str:
    """The prices, and how to replace those that were not given."""
    names = FLAGS if keys == "flags" else {name: f"{keys}.{name}" for name in FLAGS}
    how = ", ".join(names[name] for name in prices.assumed)
    return f"at {prices}" + (f" (assumed; yours: {how})" if how else "")


def valued(default: Iteration, points: Iterable[Iteration], gpus: int, prices: Prices) -> Worth:
    """The point of a frontier, or default clocks, where energy and time together cost least."""
    return worth(default, least_cost([default, *points], gpus, prices), gpus, prices)


def money_json(prices: Prices, **found: Worth) -> dict[str, Any]:
    """The prices, and each plan's worth by name."""
    return {"prices": asdict(prices)} | {name: one.as_json() for name, one in found.items()}
