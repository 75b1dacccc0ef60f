"""Energy of the cluster by owner of its GPUs: owners, idle time and what is unknown add up to the
growth of the boards' counters.

Pure. Each joule is booked once. What a counter grows between two looks belongs to the owner at the
first one, so that a change of owner costs one look at most. The open sheet is closed every
SHEET_S; a sheet that was kept twice, by a controller that ended meanwhile, counts once.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace

from joulecut_controller.view import GpuView
from joulecut_wire import slurm
from joulecut_wire.assumed import UNUSED_BUSY_RATIO
from joulecut_wire.messages import Allocation

TOPIC = "energy"  # of closed sheets among the records, and the open one among what was learnt
VERSION = 2  # 1 had no seconds
SHEET_S = 3600.0
UNUSED = "unused"
OWNERS_MAX = 400  # of a sheet: a record holds 65,536 characters; more are unknown
GAP_S = 60.0  # without a look: longer, and the owner is known only where it is still the same
FORGET_S = 7 * 86_400.0  # a board that is not seen
POWER_W_MAX = 10_000.0  # above every board: faster growth of a counter is not believed
SLACK_S = 10.0  # between a counter's own time and ours


@dataclass(frozen=True, slots=True, order=True)
class Payer:
    """Whose energy it is. `kind` is job, unused (held by a job that does nothing on it), idle or
    unknown; "" is not known.
    """

    kind: str
    user: str = ""
    account: str = ""
    partition: str = ""
    namespace: str = ""

    @property
    def name(self) -> str:
        """In words: a user, an account or a namespace, as far as they are known."""
        known = (("user", self.user), ("account", self.account), ("namespace", self.namespace))
        return ", ".join(f"{word} {one}" for word, one in known if one) or "an unknown owner"


IDLE, UNKNOWN = Payer("idle"), Payer("unknown")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Joules, and seconds of GPUs, by owner between two moments."""

    since_unix_s: float
    until_unix_s: float
    joules: Mapping[Payer, float]
    gpu_s: Mapping[Payer, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Board:
    counter_j: float
    at_unix_s: float
    payer: Payer
    used_s: float  # when its owner was last seen to use it, or got it
    job: str = ""  # its owner's


@dataclass(slots=True)
class EnergyLedger:
    """The open sheet, and the last look at each board. Every GPU begins as used."""

    since_unix_s: float = math.nan  # before the first look
    until_unix_s: float = math.nan
    joules: dict[Payer, float] = field(default_factory=dict)
    gpu_s: dict[Payer, float] = field(default_factory=dict)
    _boards: dict[str, _Board] = field(default_factory=dict)

    def update(
        self, gpus: Mapping[str, GpuView], now_unix_s: float, unused_after_s: float = math.inf
    ) -> None:
        if math.isnan(self.since_unix_s):
            self.since_unix_s = now_unix_s
        self.until_unix_s = now_unix_s
        for uuid, gpu in gpus.items():
            counter_j = gpu.snapshot.energy_j if gpu.snapshot is not None else None
            if counter_j is None:
                continue
            owner, before = payer_of(gpu.allocation), self._boards.get(uuid)
            job, used_s = gpu.allocation.job if gpu.allocation else "", now_unix_s
            if before and not _in_use(gpu) and (_used(before.payer), before.job) == (owner, job):
                used_s = before.used_s
            payer = owner
            if now_unix_s - used_s >= unused_after_s and owner != IDLE:
                payer = Payer(UNUSED) if owner == UNKNOWN else replace(owner, kind=UNUSED)
            self._boards[uuid] = _Board(counter_j, now_unix_s, payer, used_s, job)
            if before is None:
                continue
            grown_j = counter_j - before.counter_j
            grown_j = grown_j if grown_j >= 0.0 else counter_j  # it restarted with its driver
            waited_s = max(0.0, now_unix_s - before.at_unix_s)
            if grown_j <= POWER_W_MAX * (waited_s + SLACK_S):
                same = before.payer == payer or waited_s <= GAP_S
                self._book(before.payer if same else UNKNOWN, grown_j, waited_s)

    def unused_s(self, now_unix_s: float) -> dict[str, float]:
        """How long each unused GPU has been."""
        boards = self._boards.items()
        return {u: now_unix_s - one.used_s for u, one in boards if one.payer.kind == UNUSED}

    def is_unused(self, uuid: str) -> bool:
        return uuid in self._boards and self._boards[uuid].payer.kind == UNUSED

    def note_used(self, uuids: Iterable[str], now_unix_s: float) -> None:
        """GPUs that were at work, perhaps between two looks."""
        for board in (self._boards[uuid] for uuid in uuids if uuid in self._boards):
            board.used_s, board.payer = now_unix_s, _used(board.payer)

    def _book(self, payer: Payer, joules: float, gpu_s: float) -> None:
        if payer not in self.joules and len(self.joules) >= OWNERS_MAX:
            payer = UNKNOWN
        self.joules[payer] = self.joules.get(payer, 0.0) + joules
        self.gpu_s[payer] = self.gpu_s.get(payer, 0.0) + gpu_s

    @property
    def is_full(self) -> bool:
        return self.until_unix_s - self.since_unix_s >= SHEET_S

    def closed(self) -> str:
        """The sheet as text; a new one begins."""
        text = self._text(boards={})
        self.since_unix_s, self.joules, self.gpu_s = self.until_unix_s, {}, {}
        old_s = self.until_unix_s - FORGET_S
        self._boards = {u: one for u, one in self._boards.items() if one.at_unix_s > old_s}
        return text

    def text(self) -> str:
        """Open sheet and boards, for the next controller."""
        return self._text(self._boards)

    def _text(self, boards: Mapping[str, _Board]) -> str:
        payers = sorted({*self.joules, *(board.payer for board in boards.values())})
        place = {payer: number for number, payer in enumerate(payers)}
        rows = [
            [*astuple(payer), self.joules.get(payer, 0.0), self.gpu_s.get(payer, 0.0)]
            for payer in payers
        ]
        seen = {u: [b.counter_j, b.at_unix_s, place[b.payer]] for u, b in boards.items()}
        return json.dumps([VERSION, self.since_unix_s, self.until_unix_s, rows, seen])


def continued(text: str) -> EnergyLedger:
    """The ledger that another controller kept. Raises ValueError for anything else."""
    sheet, boards = _read(text)
    ledger = EnergyLedger(
        sheet.since_unix_s, sheet.until_unix_s, dict(sheet.joules), dict(sheet.gpu_s)
    )
    payers = list(sheet.joules)
    try:
        for uuid, (counter_j, at_unix_s, place) in boards.items():
            payer, at_s = payers[int(place)], float(at_unix_s)
            ledger._boards[uuid] = _Board(float(counter_j), at_s, payer, at_s)
    except (IndexError, TypeError) as error:
        raise ValueError(f"not a ledger: {error}") from None
    return ledger


def total(texts: Iterable[str], since_unix_s: float) -> Sheet | None:
    """The sheets that end after `since_unix_s` as one; None without any. Damaged ones are left
    out.
    """
    newest: dict[float, Sheet] = {}
    for text in texts:
        try:
            sheet, _ = _read(text)
        except ValueError:
            continue
        kept = newest.get(sheet.since_unix_s)
        if sheet.until_unix_s > since_unix_s and not (
            kept and kept.until_unix_s >= sheet.until_unix_s
        ):
            newest[sheet.since_unix_s] = sheet
    if not newest:
        return None
    joules, gpu_s = Counter[Payer](), Counter[Payer]()
    for sheet in newest.values():
        joules.update(sheet.joules)
        gpu_s.update(sheet.gpu_s)
    return Sheet(min(newest), max(one.until_unix_s for one in newest.values()), joules, gpu_s)


def _in_use(gpu: GpuView) -> bool:
    """Whether it works, or does not say."""
    busy = gpu.snapshot.utilization_gpu_ratio if gpu.snapshot is not None else None
    return busy is None or busy > UNUSED_BUSY_RATIO


def _used(payer: Payer) -> Payer:
    """The owner of a GPU, unused or not."""
    if payer.kind != UNUSED:
        return payer
    return UNKNOWN if payer == Payer(UNUSED) else replace(payer, kind="job")


def payer_of(allocation: Allocation | None) -> Payer:
    """Whose a GPU is now: a shared one's owners are not known one by one."""
    if allocation is None or not allocation.job:
        return IDLE
    known = slurm.of_labels(allocation.labels)
    owner = Payer("job", known.user, known.account, known.partition, allocation.namespace)
    return owner if owner != Payer("job") else UNKNOWN


def _read(text: str) -> tuple[Sheet, Mapping[str, list[float]]]:
    try:
        version, since_s, until_s, rows, boards = json.loads(text)
        if version == 1:
            rows = [[*row, 0.0] for row in rows]
        joules = {Payer(*map(str, words)): float(one_j) for *words, one_j, _ in rows}
        gpu_s = {Payer(*map(str, words)): float(one_s) for *words, _, one_s in rows}
        sheet = Sheet(float(since_s), float(until_s), joules, gpu_s)
        if version not in {1, VERSION} or not math.isfinite(
            sheet.until_unix_s - sheet.since_unix_s
        ):
            raise ValueError(f"version {version}")
        if not all(map(math.isfinite, (*joules.values(), *gpu_s.values()))) or not isinstance(
            boards, dict
        ):
            raise ValueError("not numbers")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a sheet: {error}") from None
    return sheet, boards
