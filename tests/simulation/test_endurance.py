"""At ten times the usual rates memory, descriptors and store stay as they are, and a journal within
the size at which it is compacted.

Readings, passes, iterations, scrapes and changes of the policy come ten times as often as on a
usual cluster. `JOULECUT_ENDURANCE_S` sets how long it takes; the first third is not judged.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_cluster import NODES, Cluster, get, job_of

from joulecut_agent.keeper.journal import BYTES_MAX

USUAL_S = 300.0  # a nightly test; half an hour by hand
SAMPLE_S, PASS_S, SCRAPE_S, POLICY_S = 0.1, 0.5, 1.5, 10.0
GROWTH_RATIO, GROWTH_MIB, GROWTH_FDS = 0.05, 3.0, 3
JOURNALS_KIB = len(NODES) * 1.1 * BYTES_MAX / 1024.0  # each with the records of one command more


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, sample_s=SAMPLE_S)
    try:
        made.up()
        made.policy("enforce")
        yield made
    finally:
        made.down()


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def resident_mib(pid: int) -> float:
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    )


def used(cluster: Cluster, names: dict[str, int]) -> dict[str, float]:
    """What each daemon with its helpers holds now, and what is on the disk."""
    found: dict[str, float] = {}
    for name, pid in names.items():
        pids = family(pid)
        found[f"{name} MiB"] = sum(map(resident_mib, pids))
        found[f"{name} descriptors"] = sum(len(os.listdir(f"/proc/{one}/fd")) for one in pids)
    sizes = {
        path: path.stat().st_size / 2**20 for path in cluster.folder.rglob("*") if path.is_file()
    }
    found["store MiB"] = sum(
        size for path, size in sizes.items() if path.name.startswith("controller.db")
    )
    found["journal KiB"] = 1024.0 * sum(
        size for path, size in sizes.items() if "journal" in path.name
    )
    return found


@pytest.mark.nightly
def test_nothing_grows_at_ten_times_the_usual_rates(
    quick: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    lasts_s = float(os.environ.get("JOULECUT_ENDURANCE_S", USUAL_S))
    process = quick.controller_process(interval_s=PASS_S)
    url = "http://" + process.line(r"^joulecut-controller ready http=(\S+) ")[1]
    agents = [one.child.pid for one in quick.processes[: len(quick.metrics)]]
    names = {f"agent {n}": pid for n, pid in enumerate(agents, 1)}
    names["controller"] = process.child.pid
    begun_s, changes, seen = time.monotonic(), 0, list[tuple[float, dict[str, float]]]()
    while (passed_s := time.monotonic() - begun_s) < lasts_s:
        for address in (*(f"http://{one}" for one in quick.metrics), url):
            get(f"{address}/metrics")
        if passed_s > changes * POLICY_S:
            changes += 1
            quick.policy("recommend" if changes % 3 == 0 else "enforce")
        with contextlib.suppress(OSError):  # a thread or a helper ended while it was looked at
            seen.append((passed_s, used(quick, names)))
        time.sleep(SCRAPE_S)
    assert all(one.child.poll() is None for one in quick.processes)
    assert job_of(url)["decision"], "it plans"
    middle = [one for at_s, one in seen if lasts_s / 3 < at_s <= 2 * lasts_s / 3]
    late = [one for at_s, one in seen if at_s > 2 * lasts_s / 3]
    grown = []
    with capsys.disabled():
        print()
        for name in seen[0][1]:
            first, then, last = (
                statistics.median(one[name] for one in part)
                for part in ([seen[0][1]], middle, late)
            )
            print(f"{name:24} {first:9.2f} {then:9.2f} {last:9.2f}")
            slack = GROWTH_FDS if "descriptors" in name else GROWTH_MIB
            most = JOURNALS_KIB if "journal" in name else then * (1.0 + GROWTH_RATIO) + slack
            if last > most:
                grown.append(name)
        print(f"{lasts_s:.0f} s, {changes} policies, commands {quick.commands()}")
    assert not grown
