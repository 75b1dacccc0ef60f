"""Steers a node of fake GPUs from a shell: `python tests/fake_nvml/control.py STATE ACTION ...`.

For trying a daemon or any NVML client by hand, without a card. `create [--gpus 8] [--model a100]`
makes a node, and prints what to put into the environment. Any other ACTION is a method of
`FakeNvml`, with dashes and without `set_`; `--names` are those of its arguments.
"""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from fixture import CompilerMissing, FakeNvml


def value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):  # the name of a C function, or of a model
        return word


def act(path: str, action: str, *words: str) -> None:
    named = {}
    plain = list(words)
    while (at := next((i for i, word in enumerate(plain) if word.startswith("--")), -1)) >= 0:
        name, word, *_ = (*plain[at : at + 2], "")
        named[name.removeprefix("--").replace("-", "_")] = value(word)
        del plain[at : at + 2]
    if action == "create":
        node = FakeNvml(Path(path), **{"gpus": 8, "model": "a100", **named})
        print(f"export LD_LIBRARY_PATH={node.library_dir}")
        print(f"export JOULECUT_FAKE_NVML_STATE={Path(path).resolve()}")
        return
    node = FakeNvml(Path(path), gpus=None)
    called = action.replace("-", "_")
    method = getattr(node, f"set_{called}", None) or getattr(node, called)
    answer = method(*map(value, plain), **named)
    if answer is not None:
        print(*(answer if isinstance(answer, tuple) else (answer,)), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        methods = inspect.getmembers(FakeNvml, inspect.isfunction)
        known = [f"{name}{inspect.signature(one)}" for name, one in methods if name[0] != "_"]
        sys.exit("\n".join((__doc__, *known)))
    try:
        act(*sys.argv[1:])
    except (AttributeError, OSError, TypeError, ValueError, CompilerMissing) as error:
        sys.exit(f"control.py: {error}")
