"""Number and unit in a line of a log; pure.

A unit stands behind its number or in the label before it, and is read in both places, so that no
group reads a number of another unit. What follows a number without a space may change it.
"""

import re

from joulecut_wire.errors import BadInput

TIMES = {  # by group: the unit of its number, and seconds of one
    "s": ("s", 1.0),
    "ms": ("ms", 1e-3),
    "mean_s": ("s", 1.0),
    "interval_s": ("s", 1.0),
}
RATES = {  # by group: the unit of its number, and the entry's key with the count of an iteration
    "it_per_s": ("it/s", ""),
    "mean_it_per_s": ("it/s", ""),
    "samples_per_s": ("samples/s", "samples"),
    "tokens_per_s": ("tokens/s", "tokens"),
}
QUANTITIES = (*TIMES, *RATES)

_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?")
_TENS = re.compile(r"[eE]([+-]?\d{1,3})(?!\d)")
_MANY = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_SUFFIX = re.compile(rf"([{''.join(_MANY)}])(?![A-Za-z0-9])")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TIME_FORMS = {
    "ms": r"ms|msecs?|millis(?:econds?)?|毫秒",
    "s": r"s|secs?|seconds?|秒",
    "minutes": r"mins?|minutes?",
    "hours": r"hours?|hrs?",
    "microseconds": r"us|µs|usecs?|microseconds?",
    "nanoseconds": r"ns|nanoseconds?",
}
_COUNT_FORMS = {
    "it": r"its?|iters?|iterations?|steps?|batch(?:es)?|updates?",
    "samples": r"samples?|examples?|imgs?|images?|seqs?|sequences?|instances?",
    "tokens": r"tokens?|toks?|words?",
    "epochs": r"epochs?",
}


def _either(forms: dict[str, str], group: str) -> str:
    return rf"(?P<{group}>{'|'.join(forms.values())})"


_PER = r"[\s_-]*(?:/|per)[\s_-]*"
_COUNT, _TIME = _either(_COUNT_FORMS, "count"), _either(_TIME_FORMS, "time")
_UNIT = (
    rf"(?:{_COUNT}{_PER}{_TIME}|(?<!/){_TIME.replace('time', 'each')}(?:{_PER}"
    rf"{_COUNT.replace('count', 'of')})?|(?P<short>tps|wps))(?![a-zA-Z])"
)
_DEVICE = rf"(?:{_PER}(?:gpu|device|chip|rank))?"
_AFTER = re.compile(rf"\s*[(\[]?{_UNIT}(?!\w*{_DEVICE}[)\]]?\s*[:=])", re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?<![a-z]){_UNIT}{_DEVICE}[)\]]?['\"]?\s*(?P<ends>[:=]?)\s*['\"]?$", re.IGNORECASE
)
# What may follow a number and leaves it as it is.
_JOINED = re.compile(r"[,;|)\]}'\"\s±]|[.]+(?:\s|$)|:(?!\d)|$")


def _unit(match: re.Match[str] | None) -> str:
    """Unit in words of TIMES and RATES; of a number a line names; "" where it names none."""
    if match is None or ("ends" in match.groupdict() and not match["ends"] and match["each"]):
        return ""  # a time's unit before a number stands in a label

    def named(forms: dict[str, str], group: str) -> str:
        word = (match[group] or "").lower()
        return next((name for name, form in forms.items() if re.fullmatch(form, word)), "")

    if match["short"]:
        return "tokens/s"
    if match["count"]:
        return f"{named(_COUNT_FORMS, 'count')}/{named(_TIME_FORMS, 'time')}"
    time, of = named(_TIME_FORMS, "each"), named(_COUNT_FORMS, "of")
    return time if of in {"", "it"} else f"{time}/{of}"


def value_of(match: re.Match[str], group: str) -> tuple[float, float]:
    """The number of a group, and the error of its last digit. Raises BadInput."""
    text, (start, end), line = match[group].rstrip(".,"), match.span(group), match.string
    end = start + len(text)
    before, after = line[max(0, start - 80) : start], line[end : end + 80]
    if not _NUMBER.fullmatch(text):
        raise bad(f"{text!r} is no number", "digits, as in 1234.5 or 1,234.5")
    value = float(text.replace(",", ""))
    error = 0.5 * 10.0 ** -len(text.partition(".")[2]) / value if value else 0.0
    if re.match(r"[.,]?\d", after) or re.search(r"\d[.,:]?$|(?:^|[\s:=(])-$", before):
        raise bad(f"{text} is a part of a number in {before[-12:] + text + after[:12]!r}", "all")
    if tens := _TENS.match(after):
        value, after = value * 10.0 ** int(tens[1]), after[tens.end() :]
    elif many := _SUFFIX.match(after) or re.match(r" ([kKMGB])(?= ?(?:tok|sam|im))", after):
        value, after = value * _MANY[many[1]], after[many.end() :]
    seen = _unit(_AFTER.match(after))
    if not seen and (not _JOINED.match(after) or re.match(r" [kKMGB]\b", after)):
        raise bad(f"{text} is followed by {after[:12]!r}", "a space, or its unit")
    seen = seen or _unit(_BEFORE.search(_CAMEL.sub("_", before)))
    unit = (TIMES.get(group) or RATES.get(group) or ("", ""))[0]
    if unit and seen and seen != unit:
        raise bad(f"{text} is in {seen}", f"{unit} in group {group}")
    return value, error


def bad(what: str, allowed: str) -> BadInput:
    return BadInput("log", what, allowed)
