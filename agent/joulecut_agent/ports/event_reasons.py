"""Why a GPU is not faster, in words for the bits of its driver."""

# nvml.h, nvmlClocksEventReason*: bits of one word.
EVENT_REASONS = (
    (0x001, "idle"),
    (0x002, "applications_clocks"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "hw_power_brake"),
    (0x100, "display"),
)
_WORDS: dict[int, tuple[str, ...]] = {}
_WORDS_MAX = 256  # few combinations occur


def event_words(bits: int) -> tuple[str, ...]:
    words = _WORDS.get(bits)
    if words is None:
        words = tuple(word for bit, word in EVENT_REASONS if bits & bit)
        if len(_WORDS) < _WORDS_MAX:
            _WORDS[bits] = words
    return words
