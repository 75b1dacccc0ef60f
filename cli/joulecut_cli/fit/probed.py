"""A sweep of which only the probed clocks tell what they cost.

The other rows stay, because their clocks are asked for; their times and energies are gone
before anything reads them, so that no prediction can have seen what it is held against.
"""

import csv
import io
from pathlib import Path

from joulecut_controller.sources import profile as profiles
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.errors import BadInput

UNUSED = "1"  # stands for every time and energy that is not probed
PROBES_MAX = 1000  # clock tables have some hundred entries


def clocks_of(text: str) -> tuple[int, ...]:
    """The clocks of `--probes`, in MHz. Raises BadInput."""
    allowed = "clocks in whole MHz, separated by commas, as in 1410,1140,855"
    words = [word.strip() for word in text.split(",")]
    if len(words) > PROBES_MAX:
        raise BadInput("--probes", f"{len(words)} clocks", f"at most {PROBES_MAX}")
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= len(word) <= 5):
            raise BadInput("--probes", f'"{word}" is no clock', allowed)
    probes = tuple(int(word) for word in words)
    for clock in probes:
        if probes.count(clock) > 1:
            raise BadInput("--probes", f"{clock} MHz given twice", "each clock once")
    return probes


def read(path: Path, probes: tuple[int, ...]) -> Profile:
    """The profile, with a placeholder for each time and energy that must not be used.

    Raises BadInput.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(profiles.FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = getattr(error, "strerror", None) or "cannot be read"
        raise BadInput(str(path), what, "a readable CSV file") from None
    return profiles.parse(_without_unprobed(raw, frozenset(probes)), str(path), whole=False)


def _without_unprobed(raw: bytes, probes: frozenset[int]) -> bytes:
    """Same lines, same columns. What is no CSV is left for the reader to complain about."""
    try:
        text = raw.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error):
        return raw
    if len(rows) != reader.line_num:
        return raw  # a field over several lines: the reader will name it
    columns: list[str] = []
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        fields = [field.strip() for field in row]
        if not columns:
            columns = fields if any(fields) else []
        elif len(fields) == len(columns) and "frequency" in columns:
            clock = _whole(fields[columns.index("frequency")])
            if clock is not None and clock not in probes:
                for name in {"time", "energy"} & set(columns):
                    fields[columns.index(name)] = UNUSED
        writer.writerow(fields)
    return out.getvalue().encode()


def _whole(field: str) -> int | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def check(path: Path, sweep: Profile, probes: tuple[int, ...]) -> None:
    """Raises BadInput where a probe is not of the sweep, or an operation has none."""
    listed = {o.clock_mhz for options in sweep.options.values() for o in options}
    for clock in probes:
        if clock not in listed:
            shown = ", ".join(map(str, sorted(listed, reverse=True)))
            raise BadInput("--probes", f"{clock} MHz is not in {path}", shown)
    for (stage, kind), options in sweep.options.items():
        own = sorted((o.clock_mhz for o in options), reverse=True)
        if not set(own) & set(probes):
            what = f"stage {stage} {kind} of {path} has none of them"
            raise BadInput("--probes", what, f"one of {', '.join(map(str, own))}")
