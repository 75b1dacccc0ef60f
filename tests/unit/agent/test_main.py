"""`joulecut-agent --version` and `--help` answer without loading the agent."""

import subprocess
import sys

import pytest

HEAVY = ("grpc", "msgspec", "prometheus_client", "yaml", "joulecut_agent.keeper")


@pytest.mark.parametrize(
    ("flag", "answer"),
    [("--version", "joulecut-agent 0.1.0\n"), ("--help", "usage: joulecut-agent")],
)
def test_it_answers_and_loads_nothing_heavy(flag: str, answer: str) -> None:
    program = (
        "import atexit, sys\n"
        "from joulecut_agent import main\n"
        f"atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules]))\n"
        f"sys.argv = ['joulecut-agent', {flag!r}]\n"
        "sys.exit(main.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith(answer)
    assert done.stdout.endswith("[]\n")
