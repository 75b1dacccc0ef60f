"""The metrics server without a free file descriptor: it waits, and answers once there is one."""

import subprocess
import sys
import urllib.request

SERVER = """
import resource, sys, time
from prometheus_client.registry import CollectorRegistry
from joulecut_agent.export.http_server import Exporter
exporter = Exporter(CollectorRegistry, "127.0.0.1", 0)
exporter.start()
print(exporter.port, flush=True)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays open
print("full", flush=True)
sys.stdin.readline()
before_s = time.process_time()
time.sleep(2.0)
print(time.process_time() - before_s, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
sys.stdin.readline()
"""

CLIENT = """
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
"""


def test_without_a_descriptor_it_does_not_spin() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        port = int(server.stdout.readline())
        print(file=server.stdin, flush=True)
        assert server.stdout.readline() == "full\n"
        with subprocess.Popen([sys.executable, "-c", CLIENT, str(port)]) as client:
            print(file=server.stdin, flush=True)
            busy_s = float(server.stdout.readline())
            assert client.wait() == 0, "it was answered in the end"
        assert busy_s < 0.03, "of a second: it waits"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.status == 200
        server.kill()
