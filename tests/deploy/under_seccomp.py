"""Runs a program under a seccomp profile in the format of container runtimes, by libseccomp.

python under_seccomp.py PROFILE.json PROGRAM [ARGUMENT...]
"""

import ctypes
import json
import os
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # seccomp.h
OPS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
    ]


def load(profile: Path) -> None:
    """Puts this process under the profile, and every program that it becomes."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    data = json.loads(profile.read_text())
    assert data["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = ctypes.c_void_p(library.seccomp_init(ERRNO | data["defaultErrnoRet"]))
    for rule in data["syscalls"]:
        action = {"SCMP_ACT_ALLOW": ALLOW, "SCMP_ACT_ERRNO": ERRNO | rule.get("errnoRet", 0)}
        compared = [
            Comparison(one["index"], OPS[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", ())
        ]
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # of another architecture
                continue
            made = library.seccomp_rule_add_array(
                rules, ctypes.c_uint(action[rule["action"]]), number, len(compared),
                (Comparison * len(compared))(*compared),
            )  # fmt: skip
            assert made == 0, (name, made)
    assert library.seccomp_load(rules) == 0


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
