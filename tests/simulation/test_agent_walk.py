"""10,000 steps over everything that may befall a keeper, with its promises checked from outside.

No GPU stays locked or limited by us without a live lease for longer than the restores may be
spread; none is written that no command named; no intent is missing on disk when a write comes.
The keeper is the real one, its time and world are not (`faulty_node`). The check knows what was
promised by accepted answers, and what stands on the cards; never what the keeper believes.
"""

import math
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_node import CLOCKS_MHZ, FREE, OURS, THEIRS, Card, Clock, Disk, Driver, Killed, Life

from joulecut_agent import keeper as module
from joulecut_agent import keeper_protocol as wire
from joulecut_agent import state as leases
from joulecut_agent.keeper import STOP_LOOK_S, Keeper, Settings
from joulecut_agent.keeper_client import decode_reply, encode_request
from joulecut_agent.limits import Bounds
from joulecut_agent.state import RETRY_S_MAX, STEP_S, Command

STEPS = int(os.environ.get("JOULECUT_WALK_STEPS", "10000"))
TTL_S_MAX = 60.0
NODE = tuple(f"GPU-{n}" for n in range(6))
NAMED, BYSTANDER = NODE[:-1], NODE[-1]  # nobody ever orders anything of the last one
STRANGER = "GPU-of-another-node"
ASKED_MHZ = tuple((low, high) for low in (0, 210) for high in CLOCKS_MHZ[1:4])
ASKED_MW = (200_000, 250_000, 300_000)
CAP_MW = 180_000
JOBS = ("blue", "red")
SITES: dict[str, dict[str, Any]] = {
    "plain": {},
    "spread": {"restore_spread_s": 10.0},
    "capped": {"power_safe": CAP_MW, "site_default": (0, 1410)},
    "kept": {"power_safe": "keep", "restore_spread_s": 3.0},
    "apart": {"journal_dir": "memory"},
}


class Walk:
    """One node, the choices of one seed, and what was promised to whom."""

    def __init__(self, folder: Path, site: dict[str, Any], seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock, self.life = Clock(), Life()
        self.boot = folder / "boot_id"
        self.boots = 0
        lasting = folder / "journal"
        self.apart = "journal_dir" in site
        if self.apart:
            site = {**site, "journal_dir": str(folder / site["journal_dir"])}
            (folder / "memory").mkdir()
        path = folder / "memory" / "journal" if self.apart else lasting
        self.disk = Disk(path, self.life, self.rng, lasting if self.apart else None)
        self.stop = folder / "stop"
        default: Any = site.get("site_default", FREE)
        self.cards = {uuid: Card() for uuid in NODE}
        self.driver = Driver(
            self.clock, self.life, self.rng, self.cards, frozenset(ASKED_MW),
            default,
        )  # fmt: skip
        self.driver.before_write = self._intended
        self.settings = Settings(
            str(folder), Bounds(TTL_S_MAX, min_dwell_s=0.0, writes_per_minute=10**6),
            stop_file=str(self.stop), **site,
        )  # fmt: skip
        self.keeper: Keeper | None = None
        self.until_s = dict.fromkeys(NODE, -math.inf)  # the end of each promise
        self.promised: dict[str, tuple[tuple[int, int], int]] = {}  # (clocks, power), undisturbed
        self.ever: set[str] = set()  # named by any order so far
        self.epoch, self.generation, self.epoch_accepted = 1, 0, 0
        self.holder: dict[str, tuple[int, str, int]] = {}
        self.programs: dict[str, tuple[int, ...]] = {}  # the clocks each may step to
        self.stepped_s: dict[str, float] = {}  # down
        self.stepping = False
        self.alive_s = 0.0  # since when a keeper has been able to restore
        self.counts: Counter[str] = Counter()
        self.history: deque[str] = deque(maxlen=40)

    def begin(self) -> None:
        self._reboot()
        self._start()

    # -- the world turns ------------------------------------------------------------------

    def step(self) -> None:
        acts: dict[Callable[[], None], int] = {
            self.apply: 40, self.program_step: 20, self.renew: 12, self.wait: 14, self.clear: 6,
            self.bad_apply: 4, self.older: 3, self.term: 1, self.retell: 2, self.nonsense: 2,
            self.release: 1, self.resume: 2, self.stop_file: 1, self.somebody: 4, self.kill: 4,
            self.leave: 2,
            self.power_cut: 1, self.reload: 1, self.lose: 2, self.errors: 3, self.hang: 2,
            self.let_go: 4, self.deny: 1, self.full_disk: 2, self.room: 16, self.delete: 1,
            self.wall_clock: 1, self.mig: 1,
        }  # fmt: skip
        (act,) = self.rng.choices(list(acts), list(acts.values()))
        self.history.append(f"{self.clock.now_s:.3f} {act.__name__}")
        self.driver.written.clear()
        self.driver.lowered.clear()
        self._during(act)
        assert BYSTANDER not in self.driver.written, "it was never named"
        assert self.driver.written <= self.ever
        self.check()

    def _during(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Killed:
            self._bury()
            self._start()

    def _start(self) -> None:
        """Keepers die in their start, too; another one follows."""
        while self.keeper is None:
            self.clock.sleep(self.rng.choice((0.0, 0.1, 5.0)))
            self.driver.denied = ""
            try:
                self.keeper = Keeper(self.settings, self.driver)
            except Killed:
                self._bury()
            for uuid, card in self.cards.items():  # no lease survives the process
                self._over(uuid)
                card.muddled = False
        self.alive_s = self.clock.now_s

    def _bury(self) -> None:
        if self.keeper is not None:
            self.keeper._journal._file.close()
        self.keeper = None
        self.life.touches_left = -1
        if not self.disk.path.exists():  # somebody deleted it before: nobody can know
            self.epoch_accepted *= self.apart
            self.holder.clear()
            for card in self.cards.values():
                card.forget()

    def _pass(self, wait_s: float) -> None:
        """Time as the keeper's own loop spends it: it wakes when it said that it would."""
        until_s = self.clock.now_s + wait_s
        while self.keeper is not None:
            due_s = self.keeper.due_s()
            if due_s > until_s:
                break
            self.clock.now_s = max(self.clock.now_s, due_s)
            self.keeper.tick()
            self.check()
            assert self.keeper.due_s() > due_s or self.keeper.due_s() > self.clock.now_s, "no spin"
        self.clock.now_s = max(self.clock.now_s, until_s)

    def _ask(self, command: Command) -> wire.Reply:
        assert self.keeper is not None
        self.history.append(f"  {command}")
        serial, heard = wire.decode_request(encode_request(self.generation, command))
        reply = self.keeper.handle(serial, heard)
        self.history.append(f"  {[(s.uuid, s.accepted, s.reason) for s in reply.slots]}")
        return decode_reply(wire.encode_reply(reply))

    # -- what is asked ----------------------------------------------------------------------

    def apply(self) -> None:
        self.generation += 1
        self._order(self._settings(), self.epoch, self.generation, self.rng.uniform(0.1, TTL_S_MAX))

    def _settings(self) -> dict[str, tuple[tuple[int, int], int]]:
        chosen = {}
        for uuid in self.rng.sample(NAMED, self.rng.randint(1, len(NAMED))):
            power_mw = self.rng.choice((0, 0, *ASKED_MW))
            chosen[uuid] = (
                self.rng.choice((FREE, *ASKED_MHZ) if power_mw else ASKED_MHZ),
                power_mw,
            )
        return chosen

    def _order(
        self, wanted: dict[str, tuple[tuple[int, int], int]], epoch: int, generation: int,
        ttl_s: float,
    ) -> bool:  # fmt: skip
        job = self.rng.choice(JOBS)
        programs = {
            uuid: (self.rng.choice([mhz for mhz in CLOCKS_MHZ if low <= mhz <= high]),)
            for uuid, ((low, high), _) in wanted.items()
            if 0 < low <= high < 60_000 and high in CLOCKS_MHZ and self.rng.random() < 0.6
        }
        self.ever |= wanted.keys() & set(NODE)
        command = Command(
            leases.APPLY, epoch, job, generation, ttl_s, {u: k[0] for u, k in wanted.items()},
            power_mw={u: k[1] for u, k in wanted.items() if k[1]}, programs=programs,
        )  # fmt: skip
        assert self.keeper is not None
        self.keeper.tick()
        before = {u: (c.clocks_mhz, c.limit_mw) for u, c in self.cards.items()}
        calm = not self._faults()
        self.driver.lowered.clear()
        for uuid in wanted:  # what a write that fails leaves is nobody's promise
            kept = self.promised.pop(uuid, None)
            if kept and calm:
                self.promised[uuid] = kept
        reply = self._ask(command)
        verdicts = {slot.accepted for slot in reply.slots}
        assert len(verdicts) == 1, "all or nothing"
        assert self.driver.lowered <= wanted.keys()
        (accepted,) = verdicts
        self.counts["refused: " + reply.slots[0].reason[:25]] += not accepted
        if not accepted and calm:
            assert before == {u: (c.clocks_mhz, c.limit_mw) for u, c in self.cards.items()}
        if accepted:
            assert epoch >= self.epoch_accepted
            assert 0.0 < ttl_s <= TTL_S_MAX
            assert not self.stop.exists()
            self.epoch_accepted = epoch
            for uuid, knobs in wanted.items():
                assert not self.cards[uuid].mig
                self.until_s[uuid] = self.clock.now_s + ttl_s
                if not self.cards[uuid].muddled:
                    self.promised[uuid] = knobs
                self.holder[uuid] = (epoch, job, generation)
                self.programs[uuid] = (knobs[0][1], *programs.get(uuid, ()))
                self.stepped_s.pop(uuid, None)
            self.counts["accepted"] += 1
        return accepted

    def _faults(self) -> bool:
        d = self.driver
        unable = any(card.lost or card.hanging for card in self.cards.values())
        armed = self.life.touches_left > 0
        return bool(d.error_ratio or d.hang_next or d.denied or d.unloaded or unable or armed
                    or self.disk.full)  # fmt: skip

    def bad_apply(self) -> None:
        self.generation += 1
        wanted, ttl_s = self._settings(), TTL_S_MAX
        kind = self.rng.randrange(5)
        first = next(iter(wanted))
        if kind == 0:
            wanted[first] = ((0, self.rng.choice((1001, 60_000))), 0)
        elif kind == 1:
            wanted[first] = ((900, 600), 0)
        elif kind == 2:
            wanted[first] = (FREE, self.rng.choice((1, 99_999, 400_001)))
        elif kind == 3:
            wanted[STRANGER] = ((0, 900), 0)
        else:
            ttl_s = self.rng.choice((0.0, -1.0, math.nan, math.inf, TTL_S_MAX * 1.01))
        assert not self._order(wanted, self.epoch, self.generation, ttl_s)

    def older(self) -> None:
        wanted = self._settings()
        if self.epoch_accepted and self.rng.random() < 0.5:
            assert not self._order(wanted, self.epoch_accepted - 1, self.generation + 1, TTL_S_MAX)
        elif held := [u for u in wanted if self.holder.get(u, (0, "", 0))[0] == self.epoch]:
            assert not self._order(wanted, self.epoch, self.holder[held[0]][2] - 1, TTL_S_MAX)

    def program_step(self) -> None:
        """A job's mark, as the agent passes it on; or what a mad agent might send."""
        live = self._live()
        uuid = self.rng.choice(live if live and self.rng.random() < 0.9 else [*NAMED, STRANGER])
        _, job, generation = self.holder.get(uuid, (0, "blue", 1))
        program = self.programs.get(uuid, (900,))
        mhz = self.rng.choice(program) if self.rng.random() < 0.8 else self.rng.choice(CLOCKS_MHZ)
        kind = self.rng.randrange(10)
        job, generation = job + "x" * (kind == 0), generation - (kind == 1)
        assert self.keeper is not None
        self.keeper.tick()
        live = self._live()
        card = self.cards.get(uuid, Card())
        before, calm = (card.clocks_mhz, card.limit_mw), not self._faults()
        if (kept := self.promised.pop(uuid, None)) and calm:
            self.promised[uuid] = kept
        self.driver.lowered.clear()
        told = Command(leases.STEP, 0, job, generation, clocks_mhz={uuid: (0, mhz)})
        self.stepping = True  # journaled with its program, and not once more
        try:
            (slot,) = self._ask(told).slots
        finally:
            self.stepping = False
        assert self.driver.lowered <= {uuid}
        if not slot.accepted and "no step" in slot.reason:
            assert not self.driver.lowered
        if not slot.accepted:
            assert not calm or before == (card.clocks_mhz, card.limit_mw)
            self.counts["step refused: " + slot.reason[:12]] += 1
            if slot.lease is None and uuid in live:  # the way back may have failed as well
                self._over(uuid)
            return
        assert uuid in live
        assert kind > 1
        assert mhz in program
        self.counts["stepped"] += 1
        if kept and not card.muddled:
            if 0 < mhz < kept[0][1]:
                past_s = self.stepped_s.get(uuid, -math.inf)
                assert self.clock.now_s - past_s >= STEP_S - 1e-9
                self.stepped_s[uuid] = self.clock.now_s
            self.promised[uuid] = ((kept[0][0], mhz), kept[1])

    def retell(self) -> None:
        """An older generation's content under its own number again, as a retry does."""
        if live := self._live():
            epoch, job, generation = self.holder[live[0]]
            other = Command(leases.APPLY, epoch, job + "x", generation, 5.0, {live[0]: (0, 900)})
            assert not self._ask(other).slots[0].accepted

    def term(self) -> None:
        self.epoch += 1

    def renew(self) -> None:
        if live := self._live():
            epoch, job, generation = self.holder[self.rng.choice(live)]
            ttl_s = self.rng.choice(
                (math.nan, math.inf, 0.0, *[self.rng.uniform(1, TTL_S_MAX)] * 9)
            )
            reply = self._ask(
                Command(leases.RENEW, self.rng.choice((epoch, self.epoch)), job, generation, ttl_s)
            )
            for slot in reply.slots:
                if slot.accepted:
                    assert self.holder[slot.uuid][1:] == (job, generation)
                    assert 0.0 < ttl_s <= TTL_S_MAX
                    self.until_s[slot.uuid] = self.clock.now_s + ttl_s
                    self.holder[slot.uuid] = (reply.epoch_seen, job, generation)

    def clear(self) -> None:
        named = self.rng.sample(NAMED, self.rng.randint(0, 2))
        job = self.rng.choice(("", *JOBS))
        epoch = self.rng.choice((0, self.epoch, max(0, self.epoch - 1)))
        cause = self.rng.choice(("cleared", "job_ended"))
        told = dict.fromkeys(named, FREE)
        reply = self._ask(Command(leases.CLEAR, epoch, job, clocks_mhz=told, cause=cause))
        for slot in reply.slots:
            if slot.reason.startswith(leases.STUCK):
                self._over(slot.uuid)
            if slot.accepted and slot.uuid:
                self._over(slot.uuid)
                card = self.cards[slot.uuid]
                keeps = cause != "cleared" and self.settings.power_safe == "keep"
                assert card.clocks_by != OURS, "done before it is answered"
                assert card.limit_by != OURS or keeps or "power" not in slot.reason

    def release(self) -> None:
        for_s = self.rng.choice((1.0, 60.0, 3600.0, 3601.0, -1.0, math.nan))
        reply = self._ask(Command(leases.RELEASE, ttl_s=for_s))
        if 0.0 <= for_s <= 3600.0:
            for uuid in NODE:
                self._over(uuid)
        if reply.slots[0].accepted:
            assert 0.0 <= for_s <= 3600.0
            assert not any(card.clocks_by == OURS for card in self.cards.values())
            self.counts["released"] += 1

    def resume(self) -> None:
        assert self._ask(Command(leases.RESUME)).slots[0].accepted

    def nonsense(self) -> None:
        raw = self.rng.randbytes(self.rng.choice((0, 7, wire.REQUEST_BYTES)))
        with pytest.raises(wire.ProtocolError):
            wire.decode_request(raw)

    def stop_file(self) -> None:
        self.stop.touch()
        for uuid in NODE:
            self._over(uuid, STOP_LOOK_S)

    # -- what befalls it ----------------------------------------------------------------------

    def wait(self) -> None:
        self._pass(self.rng.choice((0.0, 0.01, 1.0, 5.0, 20.0, 70.0)))

    def somebody(self) -> None:
        """Another program sets a GPU; it may be noticed, and then the lease is given up."""
        uuid = self.rng.choice(NAMED)
        card = self.cards[uuid]
        if card.hanging:
            return
        self.promised.pop(uuid, None)
        card.muddled = True
        mhz = self.rng.choice((FREE, (0, 1305)))
        card.clocks_mhz, card.clocks_by = mhz, THEIRS if mhz[1] else ""
        if uuid in self._live() and self.rng.random() < 0.6:
            epoch, job, generation = self.holder[uuid]
            power = {uuid: card.limit_mw} if card.limit_by == OURS else {}
            reply = self._ask(
                Command(leases.YIELD, epoch, job, generation, 0.0, {uuid: FREE}, power_mw=power)
            )
            if reply.slots[0].accepted and not power:
                assert self.cards[uuid].clocks_mhz == mhz, "what stands there is theirs"

    def kill(self) -> None:
        """At once, or in the middle of what comes next."""
        self.life.touches_left, self.life.after = self.rng.randint(1, 12), self.rng.random() < 0.5
        if self.rng.random() < 0.4:
            raise Killed

    def leave(self) -> None:
        """Asked to go, or left by its agent; then started again."""
        assert self.keeper is not None
        cause = self.rng.choice(("shutdown", "agent_gone"))
        if self.keeper.give_back(cause):
            self.counts["left"] += 1
            for uuid in NODE:
                self._over(uuid)
                assert self.cards[uuid].clocks_by != OURS
        self._bury()
        self._start()

    def power_cut(self) -> None:
        self.disk.power_cut()
        self._reboot()
        raise Killed

    def _reboot(self) -> None:
        self.boots += 1
        self.boot.write_text(f"boot-{self.boots}\n")
        for card in self.cards.values():
            card.forget()
            card.lost = False
        self.driver.unloaded = self.disk.full = False
        self.promised.clear()

    def reload(self) -> None:
        """The driver is unloaded for a while; what it was told is gone."""
        self.driver.unloaded = True
        for card in self.cards.values():
            card.forget()
        self.promised.clear()
        self._pass(self.rng.uniform(0.0, 5.0))
        self._mark()
        self.driver.unloaded = False

    def lose(self) -> None:
        card = self.cards[self.rng.choice(NODE)]
        card.lost = not card.lost

    def mig(self) -> None:
        card = self.cards[NAMED[0]]
        if card.mig or not card.ours:
            card.mig = not card.mig

    def errors(self) -> None:
        self.driver.error_ratio = self.rng.choice((0.0, 0.0, 0.1, 0.5))

    def hang(self) -> None:
        self.driver.hang_next = True

    def let_go(self) -> None:
        """What hung in the driver comes back; half of it did what it was told."""
        for card in self.cards.values():
            if card.hanging:
                act, card.hanging = card.hanging, None
                card.trouble_s = self.clock.now_s
                if self.rng.random() < 0.5:
                    act()
        self.driver.hang_next = False
        for card in self.cards.values():
            card.trouble_s = self.clock.now_s if card.lost else card.trouble_s
            card.lost = False

    def deny(self) -> None:
        self.driver.denied = self.rng.choice(("", "", "power", "clocks", "all"))

    def full_disk(self) -> None:
        self.disk.full = True

    def room(self) -> None:
        self._mark()
        self.disk.full, self.driver.denied, self.driver.error_ratio = False, "", 0.0
        if self.stop.exists():
            self._pass(STOP_LOOK_S)
            self.stop.unlink()

    def delete(self) -> None:
        self.disk.path.unlink(missing_ok=True)

    def wall_clock(self) -> None:
        self.clock.wall_s += self.rng.choice((-1e6, 3600.0, 1e9))

    # -- the check ------------------------------------------------------------------------------

    def _live(self) -> list[str]:
        return [uuid for uuid, until_s in self.until_s.items() if until_s > self.clock.now_s]

    def _over(self, uuid: str, within_s: float = 0.0) -> None:
        self.until_s[uuid] = min(self.until_s[uuid], self.clock.now_s + within_s)
        self.promised.pop(uuid, None)

    def _mark(self) -> None:
        for uuid, card in self.cards.items():
            if not self.driver.able(uuid) or self.driver.error_ratio:
                card.trouble_s = self.clock.now_s

    def _intended(self, uuid: str) -> None:
        deleted = self.stepping and not self.disk.path.exists()  # since then, by somebody
        known = deleted or self.disk.names(uuid, self.boot.read_text().strip())
        assert known, "written before the journal"

    def check(self) -> None:
        self._mark()
        spread_s = self.settings.restore_spread_s
        for uuid, card in self.cards.items():
            limit = card.limit_by == OURS and self.settings.power_safe != "keep"
            if card.clocks_by == OURS or limit:
                self.counts["held"] += 1
                excused_s = max(card.since_s, self.alive_s, card.trouble_s + RETRY_S_MAX,
                                self.driver.hung_s + spread_s)  # fmt: skip
                late_s = self.clock.now_s - max(self.until_s[uuid] + spread_s, excused_s)
                assert late_s <= 1e-6, f"{uuid} is held {late_s:.3f} s without a lease: {card}"
            quiet_s = self.until_s[uuid] + spread_s + RETRY_S_MAX
            card.muddled = card.muddled and (card.ours or self.clock.now_s < quiet_s)
            knobs = self.promised.get(uuid)
            if knobs and uuid in self._live() and self.keeper is not None:
                assert card.clocks_mhz == (knobs[0] if knobs[0][1] else self._free_mhz(card))
                assert not knobs[1] or card.limit_mw == knobs[1]

    def _free_mhz(self, card: Card) -> tuple[int, int]:
        return card.clocks_mhz if card.clocks_by != OURS else FREE


@pytest.mark.parametrize("site", SITES)
def test_no_gpu_is_left_locked_and_none_is_touched_that_nobody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    seed = int(os.environ.get("JOULECUT_WALK_SEED", "1")) + 1000 * list(SITES).index(site)
    print(f"seed {seed}, site {site}")
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "boot_id")
    walk = Walk(tmp_path, SITES[site], seed)
    monkeypatch.setattr(time, "monotonic", lambda: walk.clock.now_s)
    monkeypatch.setattr(time, "time", lambda: walk.clock.wall_s)
    monkeypatch.setattr(time, "sleep", walk.clock.sleep)
    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, getattr(walk.disk, name))
    try:
        walk.begin()
        for _ in range(STEPS):
            walk.step()
    except BaseException:
        print(f"seed {seed}, site {site}: {walk.counts}", *walk.history, sep="\n")
        raise
    counts = walk.counts
    print(counts)
    assert counts["accepted"] > STEPS / 20, "a walk in which nothing is locked shows nothing"
    assert counts["held"] > STEPS / 5
    assert counts["stepped"] > STEPS / 100
