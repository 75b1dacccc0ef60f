"""What sharing jobs costs the database, and how long a lost controller's jobs are without one.

    python benchmarks/shared_claims.py --controllers 2 4 --jobs 200 --seconds 10

A real PostgreSQL, one process a controller. Each does what a controller of the group does for the
sharing alone, at the intervals as shipped: the check of its lock every second, a reading of the
claims every two, its part of 40 kB every five. Then one is killed. It prints measured processor
time, transactions and written bytes; agents, plans and pages are no part of it.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / name) for name in ("stores", "agents")]

import postgres_server  # noqa: E402 - found by the line above
from databases import Database  # noqa: E402

MEMBER = """
import resource, sys, time
from pathlib import Path
from joulecut_controller.election.claim_table import ClaimTable
from joulecut_controller.election.claims import Claims, Wish
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.election.postgres_lock import PostgresLock
from joulecut_controller.store.database import open_store
from joulecut_controller.store.postgres_url import parse_postgres_url
url, secret, jobs, name = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
names = frozenset(f"job-{n:05}" for n in range(jobs))
lock = PostgresLock(parse_postgres_url(url, password_file=secret), Timing(), name)
store = open_store(url, password_file=secret, timeout_s=2.0)
table, part = ClaimTable(store), "x" * 200 * jobs
leads = lock.acquire() or lock.join()
group = table.share(lock.number, Wish(above=0))
store.fence(group.epoch, group.number)
claims, begun_s, second, took = Claims(group.epoch, group), time.monotonic(), 0, []
while True:
    cpu_s = time.process_time()
    assert lock.check()
    if second % 2 == 0:
        asked_s = time.monotonic()
        claims.follow(table.share(lock.number, Wish(names, frozenset(claims.given))))
        took.append(time.monotonic() - asked_s)
        claims.given |= set(claims.leaving)
    if second % 5 == 0:
        table.show(lock.number, part)
    mine = len(claims.group.among(claims.group.holders))
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(second, mine, time.process_time() - cpu_s, sorted(took)[len(took) // 2], mib, flush=True)
    second += 1
    time.sleep(max(0.0, begun_s + second - time.monotonic()))
"""


def measured(server: postgres_server.Postgres, controllers: int, jobs: int, seconds: int) -> str:
    name = f"shared{controllers}"
    database = Database(server.make(name), server.secret)
    database.open()
    database.close()
    argv = [sys.executable, "-c", MEMBER, database.url, str(server.secret), str(jobs)]
    logs = [server.folder / f"{name}-{n}" for n in range(controllers)]
    members = []
    for n, log in enumerate(logs):
        with log.open("w") as out:
            members.append(subprocess.Popen([*argv, f"controller {n}"], stdout=out))

    def rows() -> list[int]:
        said = server.sql("SELECT count(*) FROM claim GROUP BY holder ORDER BY 1", name)
        return [int(one) for one in said.split()]

    def until(wanted: int) -> float:
        begun_s = time.monotonic()
        while not (len(rows()) == wanted and sum(rows()) == jobs and max(rows()) - min(rows()) < 2):
            assert time.monotonic() - begun_s < 120.0, rows()
            time.sleep(0.05)
        return time.monotonic() - begun_s

    until(controllers)
    counted = f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{name}'"
    wal = "SELECT pg_current_wal_lsn() - '0/0'"
    begun_s, before = time.monotonic(), (float(server.sql(counted)), float(server.sql(wal)))
    time.sleep(seconds)
    span_s = time.monotonic() - begun_s
    commits = (float(server.sql(counted)) - before[0]) / span_s
    day = (float(server.sql(wal)) - before[1]) / span_s * 86_400.0
    lines = [log.read_text().splitlines()[-seconds:] for log in logs]
    cpu_ms = [1000.0 * sum(float(one.split()[2]) for one in of) / len(of) for of in lines]
    share_ms = max(1000.0 * float(of[-1].split()[3]) for of in lines)
    mib = max(float(of[-1].split()[4]) for of in lines)
    lost = members[-1]
    lost.kill()
    lost.wait()
    taken_s = until(controllers - 1)
    for member in members:
        member.kill()
        member.wait()
    return (
        f"{controllers} controllers, {jobs} jobs: {max(cpu_ms):.1f} ms of a processor a second, "
        f"{mib:.0f} MiB; a reading of the claims {share_ms:.1f} ms (median); "
        f"{commits:.1f} transactions a second, {day / 1e6:.0f} MB of log a day; "
        f"after kill -9 the share of one has other holders in {taken_s:.1f} s"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--controllers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    given = parser.parse_args(argv)
    with postgres_server.running() as server:
        for controllers in given.controllers:
            print(measured(server, controllers, given.jobs, given.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
