"""A controller of a whole cluster: real gRPC agents, jobs that follow their clocks, one process.

    python benchmarks/cluster.py [--agents 1250] [--jobs 100] [--arriving 20] [--no-profiles]
                                 [--iteration-s 5] [--steady-s 60] [--limit-s 900] [--mode enforce]
                                 [--takeover] [--controllers 1]

The agents are a farm in one other process (`tests/agents/agent_farm.py`), reached over unix
sockets. All jobs but the arriving ones run first; the others begin together once those are held.
Prints as it goes: steps of jobs and cluster (p50, p99), the controller's own processor time with
that of its workers, resident memory, how late its event loop was, streams opened, and the seconds
from each job's baseline (its row in the store) to the first clock applied. `--takeover` then starts
a second controller and kills the first with SIGKILL. Several `--controllers` share the jobs in a
PostgreSQL: figures are of each, with the database's, and the last one is killed. Nothing is
asserted.
"""

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FARM = ROOT / "tests" / "agents" / "agent_farm.py"

sys.path += [str(ROOT / "tests" / name) for name in ("stores", "agents")]

import postgres_server  # noqa: E402 - found by the line above

from joulecut_sim.plant import Noise, Plant  # noqa: E402
from joulecut_sim.profile import rows, write  # noqa: E402
from joulecut_sim.skus import find  # noqa: E402

CARD = "a100-sxm"
GPUS = 8
STAGES = 8
POLL_S = 1.0  # a look at 20,000 GPUs takes 50 ms of the agents' process
TAKEOVER_AFTER_S = 45.0  # by then the standby has read the agents and the learning state
STORY = 12  # events of a job that is not held
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Arrival:
    """When a job's baseline was in the store, and when its first clocks were applied."""

    baseline_s: float | None = None
    held_s: float | None = None

    @property
    def waited_s(self) -> float | None:
        if self.baseline_s is None or self.held_s is None:
            return None
        return self.held_s - self.baseline_s


@dataclass
class Usage:
    """Processor seconds and resident memory of a process and its children."""

    own_s: float = 0.0
    all_s: float = 0.0
    own_mib: float = 0.0
    rss_mib: float = 0.0
    processes: int = 0


def usage(pid: int) -> Usage:
    parents: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = (int(words[1]), (int(words[11]) + int(words[12])) / TICKS)
    found = Usage(own_s=parents[pid][1])
    family = {pid}
    for child in sorted(parents):
        if parents[child][0] in family:
            family.add(child)
    for one in family:
        found.all_s += parents[one][1]
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                found.rss_mib += int(line.split()[1]) / 1024
                if one == pid:
                    found.own_mib = int(line.split()[1]) / 1024
    found.processes = len(family)
    return found


class Cluster:
    """A farm and a controller in a folder of their own."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.ending = contextlib.ExitStack()
        self.server: postgres_server.Postgres | None = None
        if args.controllers > 1:
            self.server = self.ending.enter_context(postgres_server.running())
            self.server.make("joulecut")
        self.names = [f"n{i:04d}" for i in range(args.agents)]
        share = args.agents / args.jobs
        bounds = [round(i * share) for i in range(args.jobs + 1)]
        self.jobs = {f"job{i:03d}": self.names[bounds[i] : bounds[i + 1]] for i in range(args.jobs)}
        self.arrivals = {name: Arrival() for name in self.jobs}
        self.started: set[str] = set()
        self._write()

    def _write(self) -> None:
        sku, args = find(CARD, "card"), self.args
        noise = Noise(operation=0.0, gpu_time=0.0, gpu_power=0.0)
        unit = Plant([sku] * STAGES, args.microbatches, noise=noise)
        unit_s = unit.iterate([sku.clock_max_mhz] * STAGES).duration_s
        jobs, entries = [], []
        for i, (name, nodes) in enumerate(self.jobs.items()):
            # No two jobs are alike, or one answer of the solver would serve them all.
            scale = args.iteration_s / unit_s * (1.0 + 0.3 * i / len(self.jobs))
            jobs.append(
                {
                    "name": name,
                    "nodes": nodes,
                    "stages": STAGES,
                    "microbatches": args.microbatches,
                    "scale": scale,
                    "seed": i,
                }
            )
            profile = ""
            if not args.no_profiles:
                with (self.folder / f"{name}.csv").open("w", newline="") as file:
                    write(rows(sku, STAGES, scale=scale, noise=0.0, seed=1), file)
                profile = f", profile: {name}.csv, blocking_power_w: {sku.blocking_power_w}"
            entries.append(
                f"  - name: {name}\n"
                f"    match: {{gpus: [{', '.join(f'{node}/0-{GPUS - 1}' for node in nodes)}]}}\n"
                f"    slo: {{max_slowdown: 2%}}\n"
                f"    clocks: {{min_mhz: 900, granularity: gpu, min_dwell: 10s}}\n"
                f"    pipeline: {{schedule: 1f1b, stages: {STAGES},"
                f" microbatches: {args.microbatches}, data_parallel: {len(nodes)}{profile}}}\n"
                f"    ranks: {{source: hook}}\n"
                f"    mode: {args.mode}\n"
            )
        (self.folder / "policy.yaml").write_text(
            "apiVersion: joulecut/v1\nkind: Policy\nmode: recommend\njobs:\n" + "".join(entries)
        )
        (self.folder / "farm.json").write_text(
            json.dumps(
                {"folder": str(self.folder), "nodes": self.names, "gpus": GPUS, "jobs": jobs}
            )
        )
        agents = "\n".join(f"  - unix:{self.folder}/{name}.sock" for name in self.names)
        store = "sqlite:///controller.db"
        if server := self.server:
            store = f"{{url: '{server.url('joulecut')}', password_file: {server.secret}}}"
        (self.folder / "controller.yaml").write_text(
            f"agents:\n{agents}\npolicy: policy.yaml\nstore: {store}\n"
            f"listen: {{http: 127.0.0.1:0}}\ninterval_s: {args.interval_s}\n"
        )

    # -- processes -------------------------------------------------------------------------

    def __enter__(self) -> "Cluster":
        pipe = subprocess.PIPE
        self.farm = subprocess.Popen(
            [sys.executable, str(FARM), str(self.folder / "farm.json")],
            stdin=pipe, stdout=pipe, text=True,
        )  # fmt: skip
        self._answer()
        self.log = (self.folder / "controller.log").open("w")
        begun_s = time.monotonic()
        self.controllers = [self.controlled("ready")]
        self.controllers += [self.controlled("standby") for _ in range(self.args.controllers - 1)]
        while self.stats()["watched"] < len(self.names):
            time.sleep(POLL_S)
        self.connected_s = time.monotonic() - begun_s
        return self

    def controlled(self, state: str) -> subprocess.Popen[str]:
        """A controller that leads ("ready") or stands by ("standby")."""
        command = [str(Path(sys.executable).with_name("joulecut-controller"))]
        made = subprocess.Popen(
            [*command, "--config", str(self.folder / "controller.yaml")],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        assert made.stdout is not None
        for line in made.stdout:
            if f" {state} " in line or " ready " in line:
                self.url = "http://" + line.split("http=")[1].split()[0]
                return made
        raise SystemExit(f"no controller: {(self.folder / 'controller.log').read_text()}")

    def take_over(self, limit_s: float) -> float:
        """Seconds from the death of the last controller until others hold clocks of each of its
        jobs that held some; of a single one, a standby.
        """
        if self.server is None:
            self.controllers.insert(0, self.controlled("standby"))
            time.sleep(TAKEOVER_AFTER_S)
        held, lost = self.stats()["held"], set(self.started)
        if self.server is not None:
            newest = "SELECT job FROM claim WHERE holder = (SELECT max(holder) FROM claim)"
            lost = {name for (name,) in self.rows(newest)}
        epoch = self.stats()["epoch"]
        self.controllers[-1].kill()
        self.controllers.pop().wait()
        begun_s, lost = time.monotonic(), {name for name in lost if held[name]}
        while time.monotonic() < begun_s + limit_s:
            epochs = self.stats()["epochs"]
            if all(epochs[name] > epoch for name in lost):
                return time.monotonic() - begun_s
            time.sleep(POLL_S)
        return float("inf")

    def __exit__(self, *_: object) -> None:
        for one in self.controllers:
            one.send_signal(signal.SIGTERM)
        for one in self.controllers:
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                one.kill()
        assert self.farm.stdin is not None
        self.farm.stdin.close()
        self.farm.wait(30)
        for pipe in (self.farm.stdout, *(one.stdout for one in self.controllers), self.log):
            if pipe is not None:
                pipe.close()
        self.ending.close()

    def _answer(self) -> dict[str, Any]:
        assert self.farm.stdout is not None
        return dict(json.loads(self.farm.stdout.readline()))

    def start(self, names: list[str]) -> None:
        assert self.farm.stdin is not None
        for name in names:
            self.farm.stdin.write(f"start {name}\n")
        self.farm.stdin.flush()
        self.started.update(names)

    def stats(self) -> dict[str, Any]:
        assert self.farm.stdin is not None
        self.farm.stdin.write("stats\n")
        self.farm.stdin.flush()
        return self._answer()

    # -- looking ---------------------------------------------------------------------------

    def look(self) -> None:
        """Notes baselines and first commands that came since the last look."""
        now_s, held = time.monotonic(), self.stats()["held"]
        known = {name for (name,) in self.rows("SELECT DISTINCT job FROM baseline")}
        if self.args.mode != "enforce":
            plans = "SELECT DISTINCT job FROM event WHERE kind = 'plan' AND generation > 0"
            held = {name: 1 for (name,) in self.rows(plans)}
        for name in self.started:
            arrival = self.arrivals[name]
            if arrival.baseline_s is None and name in known:
                arrival.baseline_s = now_s
            if arrival.held_s is None and held.get(name):
                arrival.held_s = now_s

    def rows(self, query: str) -> list[Any]:
        """Of the store; none before it has its tables."""
        if self.server is not None:
            said = self.server.sql(query, "joulecut", check=False)
            return [tuple(line.split("|")) for line in said.splitlines()]
        with contextlib.closing(
            sqlite3.connect(f"file:{self.folder}/controller.db?mode=ro", uri=True)
        ) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def written(self) -> tuple[float, float]:
        """Transactions of the database, and bytes of the server's log."""
        counts = (
            "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database"
            " WHERE datname = 'joulecut'"
        )
        ((commits, log),) = self.rows(counts) if self.server is not None else ((0.0, 0.0),)
        return float(commits), float(log)

    def wait(self, limit_s: float) -> bool:
        """Until all that run are held; False where that takes too long."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            self.look()
            if all(self.arrivals[name].held_s for name in self.started):
                return True
            time.sleep(POLL_S)
        return False

    def say_stories(self, names: Iterable[str]) -> None:
        """The newest events of jobs whose clocks are not held."""
        for name in names:
            newest = f"WHERE job = '{name}' ORDER BY id DESC LIMIT {STORY}"
            for at_unix_s, kind, text in self.rows(
                f"SELECT at_unix_s, kind, text FROM event {newest}"
            ):
                say(f"{name}: {time.time() - float(at_unix_s):.0f} s ago: {kind}: {text:.200}")

    def histogram(self, name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = {}
        for line in text.splitlines():
            if line.startswith(f"joulecut_{name}_bucket"):
                found[line.split('le="')[1].split('"')[0]] = float(line.split()[-1])
        return found


def quantiles(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Upper bounds of the buckets that hold the median and the 99th percentile, in seconds, and how
    many there were.
    """
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    total = counts.get("+Inf", 0.0)
    found = {"count": total}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        bound = next((b for b, count in counts.items() if total and count >= share * total), "nan")
        found[name] = float(bound)
    return found


def say(text: str) -> None:
    """A line at once: what a run that is cut off has measured until then stays."""
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", flush=True)


@dataclass
class Found:
    """Jobs whose clocks were not held in time, streams opened, and leases that ran out."""

    unheld: int
    streams: int
    expired: int


def run(args: argparse.Namespace, folder: Path) -> Found:
    with Cluster(args, folder) as cluster:
        say(f"all agents watched after {cluster.connected_s:.1f} s")
        names = list(cluster.jobs)
        first, later = names[: args.jobs - args.arriving], names[args.jobs - args.arriving :]
        for group, what in ((first, "first"), (later, "arriving together")):
            if group:
                cluster.start(group)
                cluster.wait(args.limit_s)
                say_waits(what, [cluster.arrivals[name] for name in group])
                cluster.say_stories(name for name in group if not cluster.arrivals[name].held_s)
        stats = say_steady(cluster, args.steady_s)
        if args.takeover:
            expired = cluster.stats()["expired"]
            held_s = cluster.take_over(args.limit_s)
            expired = cluster.stats()["expired"] - expired
            which = "one of them" if cluster.server is not None else "leader"
            say(
                f"{which} killed: others hold all after {held_s:.1f} s; leases that ran out "
                f"meanwhile: {expired}"
            )
        if args.profile_log:
            print((folder / "controller.log").read_text()[-3000:])
        unheld = sum(one.waited_s is None for one in cluster.arrivals.values())
        return Found(unheld, int(stats["streams"]), int(stats["expired"]))


def say_waits(what: str, arrivals: list[Arrival]) -> None:
    waits_s = sorted(one.waited_s for one in arrivals if one.waited_s is not None)
    figures = "none held"
    if waits_s:
        figures = f"median {statistics.median(waits_s):.1f} s, longest {waits_s[-1]:.1f} s"
    say(
        f"{len(arrivals)} jobs ({what}), baseline to clocks held: {figures}; "
        f"not held: {len(arrivals) - len(waits_s)}"
    )


def say_steady(cluster: Cluster, steady_s: float) -> dict[str, Any]:
    """Steps, event loop, processor time and memory over `steady_s`; the farm's statistics."""
    before_s, farm = time.monotonic(), cluster.stats()
    used = [usage(one.pid) for one in cluster.controllers]
    commits, log = cluster.written()
    steps, lags = cluster.histogram("reconcile_seconds"), cluster.histogram("loop_lag_seconds")
    time.sleep(steady_s)
    took_s = time.monotonic() - before_s
    now, after = [usage(one.pid) for one in cluster.controllers], cluster.stats()
    commits, log = (b - a for a, b in zip((commits, log), cluster.written(), strict=True))
    steps = quantiles(steps, cluster.histogram("reconcile_seconds"))
    lags = quantiles(lags, cluster.histogram("loop_lag_seconds"))
    say(
        f"{steps['count']:.0f} steps: p50 <= {steps['p50']:g} s, p99 <= {steps['p99']:g} s; "
        f"event loop late: p99 <= {lags['p99']:g} s"
    )
    for first, last in zip(used, now, strict=True):
        say(
            f"controller: {(last.own_s - first.own_s) / took_s:.2f} core itself, "
            f"{(last.all_s - first.all_s) / took_s:.2f} with its workers, {last.own_mib:.0f} MiB, "
            f"{last.rss_mib:.0f} with them"
        )
    say(f"farm of agents: {(after['cpu_s'] - farm['cpu_s']) / took_s:.2f} core")
    if cluster.server is not None:
        shares = [int(n) for (n,) in cluster.rows("SELECT count(*) FROM claim GROUP BY holder")]
        say(
            f"jobs by controller: {sorted(shares)}; streams open: {after['open']}, at most "
            f"{after['open_max']} of an agent; database: {commits / took_s:.1f} transactions a "
            f"second, {log / took_s * 86_400.0 / 1e9:.2f} GB of log a day"
        )
    say(f"streams opened: {after['streams']}; leases that ran out: {after['expired']}")
    return after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--agents", type=int, default=1250)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--arriving", type=int, default=20)
    parser.add_argument("--mode", default="enforce", choices=("recommend", "enforce"))
    parser.add_argument("--no-profiles", action="store_true")
    parser.add_argument("--iteration-s", type=float, default=5.0)
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--interval-s", type=float, default=5.0)
    parser.add_argument("--steady-s", type=float, default=60.0)
    parser.add_argument("--limit-s", type=float, default=900.0)
    parser.add_argument("--takeover", action="store_true", help="kill the leader at the end")
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--profile-log", action="store_true", help="print the controller's log")
    args = parser.parse_args()
    print(
        f"{args.agents} agents, {args.agents * GPUS} GPUs, {args.jobs} jobs, {args.mode}"
        f"{', no profiles' if args.no_profiles else ''}, "
        f"iterations of {args.iteration_s:g} s; {os.cpu_count()} processors",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="joulecut") as folder:
        run(args, Path(folder))


if __name__ == "__main__":
    main()
