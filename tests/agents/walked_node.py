"""A node whose keeper is the real one, and whose time, driver and disk are not: what befalls it.

The check knows what was promised by accepted answers, and what stands on the cards; never what
the keeper believes.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faulty_node import FREE, OURS, THEIRS, Card, Clock, Disk, Driver, Killed, Life

from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.evidence import READINGS, SETTLE_S
from joulecut_agent.keeper.keeper import STOP_FILE_POLL_S, Keeper
from joulecut_agent.keeper.lease import RETRY_S_MAX
from joulecut_agent.keeper.protocol import decode_reply, encode_request
from joulecut_agent.keeper.requests import Request, Yield
from joulecut_agent.keeper.settings import Settings

TTL_S_MAX = 60.0
NODE = tuple(f"GPU-{n}" for n in range(6))
NAMED, BYSTANDER = NODE[:-1], NODE[-1]  # nobody ever orders anything of the last one
ASKED_MW = (200_000, 250_000, 300_000)


class WalkedNode:
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
        self.lowered_s: dict[str, float] = {}  # until when a step below the highest clock lasts
        self.stepping = False
        self.alive_s = 0.0  # since when a keeper has been able to restore
        self.counts: Counter[str] = Counter()
        self.history: deque[str] = deque(maxlen=40)

    def begin(self) -> None:
        self._reboot()
        self._start()

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
            self._tick()
            self.check()
            assert self.keeper.due_s() > due_s or self.keeper.due_s() > self.clock.now_s, "no spin"
        self.clock.now_s = max(self.clock.now_s, until_s)

    def _tick(self) -> None:
        """Time passes for the keeper; a step that nobody held has ended."""
        assert self.keeper is not None
        ended = [uuid for uuid, end_s in self.lowered_s.items() if self.clock.now_s >= end_s]
        calm = not self._faults()
        kept = {uuid: self.promised.pop(uuid) for uuid in ended if uuid in self.promised}
        for uuid in ended:
            del self.lowered_s[uuid]
        self.stepping = bool(ended)  # a raise is journaled with its schedule, and not once more
        self.keeper.tick()
        self.stepping = False
        for uuid, ((low_mhz, _), power_mw) in kept.items():
            if calm and uuid in self._live():
                self.promised[uuid] = ((low_mhz, self.programs[uuid][0]), power_mw)

    def _ask(self, command: Request) -> wire.Reply:
        assert self.keeper is not None
        self.history.append(f"  {command}")
        serial, heard = wire.decode_request(encode_request(self.generation, command))
        reply = self.keeper.handle(serial, heard)
        self.history.append(f"  {[(s.uuid, s.accepted, s.reason) for s in reply.slots]}")
        return decode_reply(wire.encode_reply(reply))

    # -- what befalls it ----------------------------------------------------------------------

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
            epoch, _, generation = self.holder[uuid]
            for _ in range(READINGS):
                self._pass(SETTLE_S)
                if uuid not in self._live() or card.clocks_mhz != mhz:
                    return
                reply = self._ask(Yield(uuid, epoch, generation))
                if reply.slots[0].accepted:
                    self.counts["yielded"] += 1
                    self._over(uuid)
                    assert card.clocks_mhz == mhz, "what stands there is theirs"

    def stop_file(self) -> None:
        self.stop.touch()
        for uuid in NODE:
            self._over(uuid, STOP_FILE_POLL_S)

    def kill(self) -> None:
        """At once, or in the middle of what comes next."""
        self.life.touches_left, self.life.after = self.rng.randint(1, 12), self.rng.random() < 0.5
        if self.rng.random() < 0.4:
            raise Killed

    def leave(self) -> None:
        """Change to go, or left by its agent; then started again."""
        assert self.keeper is not None
        cause = self.rng.choice(("shutdown", "agent_gone"))
        if self.keeper.restore_all(cause):
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
            self._pass(STOP_FILE_POLL_S)
            self.stop.unlink()

    def delete(self) -> None:
        self.disk.path.unlink(missing_ok=True)

    def wall_clock(self) -> None:
        self.clock.wall_s += self.rng.choice((-1e6, 3600.0, 1e9))

    # -- the check ------------------------------------------------------------------------------

    def check(self) -> None:
        self._mark()
        restore_jitter_s = self.settings.restore_jitter_s
        for uuid, card in self.cards.items():
            limit = card.limit_by == OURS and self.settings.power_safe != "keep"
            if card.clocks_by == OURS or limit:
                self.counts["held"] += 1
                excused_s = max(card.since_s, self.alive_s, card.trouble_s + RETRY_S_MAX,
                                self.driver.hung_s + restore_jitter_s)  # fmt: skip
                late_s = self.clock.now_s - max(self.until_s[uuid] + restore_jitter_s, excused_s)
                assert late_s <= 1e-6, f"{uuid} is held {late_s:.3f} s without a lease: {card}"
            quiet_s = self.until_s[uuid] + restore_jitter_s + RETRY_S_MAX
            card.muddled = card.muddled and (card.ours or self.clock.now_s < quiet_s)
            knobs = self.promised.get(uuid)
            if knobs and uuid in self._live() and self.keeper is not None:
                assert card.clocks_mhz == (knobs[0] if knobs[0][1] else self._free_mhz(card))
                assert not knobs[1] or card.limit_mw == knobs[1]

    def _live(self) -> list[str]:
        return [uuid for uuid, until_s in self.until_s.items() if until_s > self.clock.now_s]

    def _over(self, uuid: str, within_s: float = 0.0) -> None:
        self.lowered_s.pop(uuid, None)
        self.until_s[uuid] = min(self.until_s[uuid], self.clock.now_s + within_s)
        self.promised.pop(uuid, None)

    def _mark(self) -> None:
        for uuid, card in self.cards.items():
            if not self.driver.able(uuid) or self.driver.error_ratio:
                card.trouble_s = self.clock.now_s

    def _faults(self) -> bool:
        d = self.driver
        unable = any(card.lost or card.hanging for card in self.cards.values())
        armed = self.life.touches_left > 0
        return bool(d.error_ratio or d.hang_next or d.denied or d.unloaded or unable or armed
                    or self.disk.full)  # fmt: skip

    def _intended(self, uuid: str) -> None:
        deleted = self.stepping and not self.disk.path.exists()  # since then, by somebody
        known = deleted or self.disk.names(uuid, self.boot.read_text().strip())
        assert known, "written before the journal"

    def _free_mhz(self, card: Card) -> tuple[int, int]:
        return card.clocks_mhz if card.clocks_by != OURS else FREE
