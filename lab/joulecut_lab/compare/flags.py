"""Numbers as people type them behind flags, within bounds, or one line that says which."""

from joulecut_wire.errors import BadInput

STRAGGLERS_MAX = 16
FACTOR_MAX = 100.0


def factors(word: str | None) -> tuple[float, ...]:
    """Of --straggler; none where it was not given. Raises BadInput."""
    if word is None:
        return ()
    allowed = f"up to {STRAGGLERS_MAX} factors from 1 to {FACTOR_MAX:g}, like 1.05,1.2"
    parts = word.split(",")
    if len(parts) > STRAGGLERS_MAX:
        raise BadInput("--straggler", f"{len(parts)} factors", allowed)
    found = []
    for part in parts:
        value = _finite(part)
        if value is None or not 1.0 <= value <= FACTOR_MAX:
            raise BadInput("--straggler", f'"{part.strip()}" is no factor', allowed)
        found.append(value)
    return tuple(found)


def number(flag: str, word: str | None, low: float, high: float) -> float | None:
    """Above `low`, up to `high`; None where the flag was not given. Raises BadInput."""
    if word is None:
        return None
    value = _finite(word)
    if value is None or not low < value <= high:
        raise BadInput(flag, f'"{word}" is out of range', f"a number above {low:g}, to {high:g}")
    return value


def _finite(word: str) -> float | None:
    text = word.strip()
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def whole(flag: str, word: str | None, default: int, low: int, high: int) -> int:
    """From `low` to `high`; `default` where the flag was not given. Raises BadInput."""
    if word is None:
        return default
    text = word.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise BadInput(flag, f'"{word}" is out of range', f"a whole number from {low} to {high}")
    return int(text)
