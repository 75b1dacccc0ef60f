"""Whatever a reader reads, it answers with a value or with the error that it promises."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import PROMISED, READERS

from joulecut_wire.errors import LINE_LENGTH_MAX

CORPUS = Path(__file__).with_name("corpus")
EXAMPLES = 60
CHANGES_MAX = 6
# What readers of numbers, texts and nested values have stumbled over elsewhere.
PIECES = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"NaN", b"-1", b"1e999", b"0", b"null", b"[]", b"{}",
    b'""', b"9" * 400, b"9" * 5000, b"[" * 300, b'{"a":' * 300, b"true", b'"\\ud800"', b"\n",
    b",", b"&a *a", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 12,
)  # fmt: skip


def kept(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def tokens(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where words and numbers begin and end, of text; of binary, runs of such bytes."""
    begin = None
    for at, byte in enumerate(raw + b" "):
        inside = bytes([byte]).isalnum() or byte in b"._-"
        if inside and begin is None:
            begin = at
        elif not inside and begin is not None:
            yield begin, at
            begin = None


def changed(raw: bytes, other: bytes, dice: random.Random) -> bytes:
    """One change: of a token, a byte or a length; or a piece of another input in its place."""
    kind, places = dice.randrange(5), list(tokens(raw))
    at = dice.randrange(len(raw) + 1)
    if kind == 0 and places:
        begin, end = dice.choice(places)
        return raw[:begin] + dice.choice(PIECES) + raw[end:]
    if kind == 1 and places:
        (a, b), (c, d) = sorted(dice.choices(places, k=2))
        return raw[:a] + raw[c:d] + raw[b:] if dice.random() < 0.5 else raw[:a] + raw[d:]
    if kind == 2:
        return raw[:at] + bytes([dice.randrange(256)]) + raw[at + dice.randrange(2) :]
    if kind == 3:
        cut = dice.randrange(len(other) + 1)
        return raw[:at] + other[cut : cut + dice.randrange(64)] + raw[at:]
    return raw[:at] + dice.choice(PIECES) + raw[at + dice.randrange(8) :]


@st.composite
def inputs(draw: st.DrawFn, name: str) -> bytes:
    corpus = kept(name)
    if draw(st.integers(0, 7)) == 0:
        return draw(st.binary(max_size=200) | st.text(max_size=200).map(_encoded))
    raw, other = draw(st.sampled_from(corpus)), draw(st.sampled_from(corpus))
    dice = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, CHANGES_MAX))):
        raw = changed(raw, other, dice)
    return raw


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def read(name: str, raw: bytes) -> None:
    try:
        READERS[name](raw)
    except PROMISED as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 4 * LINE_LENGTH_MAX


@pytest.mark.parametrize("name", READERS)
def test_what_is_kept_is_read(name: str) -> None:
    for raw in kept(name):
        read(name, raw)


@pytest.mark.hypothesis  # drawn afresh at night
@pytest.mark.parametrize("name", READERS)
def test_whatever_is_read_is_a_value_or_a_promised_error(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(inputs(name))
    def whatever(raw: bytes) -> None:
        read(name, raw)

    whatever()


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_what_reaches_new_code_is_read_too(name: str) -> None:
    """Guided by coverage, from what earlier nights kept."""
    pytest.importorskip("atheris")
    guided = [sys.executable, str(CORPUS.with_name("guided.py")), name, "-max_total_time=60"]
    done = subprocess.run(guided, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
