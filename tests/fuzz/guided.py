"""A fuzzer of one reader that follows coverage: what reaches new code is kept and changed further.

    python tests/fuzz/guided.py policy -max_total_time=600

It begins with `corpus/READER` and what earlier runs kept in `build/fuzz/READER`. Needs atheris.
Other options are those of libFuzzer.
"""

import sys
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "build" / "fuzz"
OURS = ["joulecut_agent", "joulecut_cli", "joulecut_controller", "joulecut_wire"]

with atheris.instrument_imports(include=OURS):
    from readers import PROMISED, READERS


def main(name: str, options: list[str]) -> None:
    reader = READERS[name]

    def read(raw: bytes) -> None:
        try:
            reader(raw)
        except PROMISED as error:
            assert "\n" not in str(error)

    kept = KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    broken = f"-artifact_prefix={kept.parent}/broken-{name}-"
    folders = [str(kept), str(HERE / "corpus" / name)]
    atheris.Setup([sys.argv[0], broken, *options, *folders], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
