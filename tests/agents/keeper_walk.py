"""A walk: one thing after the other that may be asked of a keeper, or may befall it.

Each answer is held against what was promised before it, at once.
"""

import math
from collections.abc import Callable

import pytest
from faulty_node import CLOCKS_MHZ, FREE, OURS, Card
from keeper_requests import apply_of
from walked_node import ASKED_MW, BYSTANDER, NAMED, NODE, TTL_S_MAX, WalkedNode

from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.lease import HOLD_S_MAX, STEP_S, STUCK
from joulecut_agent.keeper.requests import Clear, Hold, Release, Renew, Resume, Step

STRANGER = "GPU-of-another-node"
ASKED_MHZ = tuple((low, high) for low in (0, 210) for high in CLOCKS_MHZ[1:4])
JOBS = ("blue", "red")


class Walk(WalkedNode):
    """Every act of `step` is a method: here those that ask, in the node those that break."""

    def step(self) -> None:
        acts: dict[Callable[[], None], int] = {
            self.apply: 40, self.program_step: 20, self.hold: 6, self.renew: 12, self.wait: 14,
            self.clear: 6, self.bad_apply: 4, self.older: 3, self.term: 1, self.retell: 2,
            self.nonsense: 2, self.release: 1, self.resume: 2, self.stop_file: 1, self.somebody: 4,
            self.kill: 4, self.leave: 2, self.power_cut: 1, self.reload: 1,
            self.lose: 2, self.errors: 3, self.hang: 2, self.let_go: 4, self.deny: 1,
            self.full_disk: 2, self.room: 16, self.delete: 1, self.wall_clock: 1, self.mig: 1,
        }  # fmt: skip
        (act,) = self.rng.choices(list(acts), list(acts.values()))
        self.history.append(f"{self.clock.now_s:.3f} {act.__name__}")
        self.driver.written.clear()
        self.driver.lowered.clear()
        self._during(act)
        assert BYSTANDER not in self.driver.written, "it was never named"
        assert self.driver.written <= self.ever
        if self.keeper is not None:
            self._during(self._tick)
        self.check()

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
        clocks = {uuid: knobs[0] for uuid, knobs in wanted.items()}
        power_mw = {uuid: knobs[1] for uuid, knobs in wanted.items() if knobs[1]}
        command = apply_of(epoch, job, generation, ttl_s, clocks, power_mw, programs)
        self._tick()
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
                self.lowered_s.pop(uuid, None)
            self.counts["accepted"] += 1
        return accepted

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
        self._tick()
        live = self._live()
        card = self.cards.get(uuid, Card())
        before, calm = (card.clocks_mhz, card.limit_mw), not self._faults()
        if (kept := self.promised.pop(uuid, None)) and calm:
            self.promised[uuid] = kept
        self.driver.lowered.clear()
        hold_s = self.rng.choice((0.05, HOLD_S_MAX, HOLD_S_MAX, HOLD_S_MAX, 0.0, math.nan, 2.0))
        told = Step(job, generation, uuid, mhz, hold_s)
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
        self.lowered_s.pop(uuid, None)
        if mhz < program[0]:
            assert 0.0 < hold_s <= HOLD_S_MAX
            self.lowered_s[uuid] = self.clock.now_s + hold_s
        if kept and not card.muddled:
            if 0 < mhz < kept[0][1]:
                past_s = self.stepped_s.get(uuid, -math.inf)
                assert self.clock.now_s - past_s >= STEP_S - 1e-9
                self.stepped_s[uuid] = self.clock.now_s
            self.promised[uuid] = ((kept[0][0], mhz), kept[1])

    def hold(self) -> None:
        self._tick()
        uuids = tuple(self.rng.sample(NAMED, 2))
        hold_s = self.rng.choice((0.05, HOLD_S_MAX, HOLD_S_MAX, math.inf))
        for slot in self._ask(Hold(uuids, hold_s)).slots:
            assert slot.accepted <= (slot.uuid in self._live())
            if slot.accepted:
                assert hold_s <= HOLD_S_MAX
                self.counts["held on"] += 1
                self.lowered_s[slot.uuid] = self.clock.now_s + hold_s

    def retell(self) -> None:
        """An older generation's content under its own number again, as a retry does."""
        if live := self._live():
            epoch, job, generation = self.holder[live[0]]
            other = apply_of(epoch, job + "x", generation, 5.0, {live[0]: (0, 900)})
            assert not self._ask(other).slots[0].accepted

    def term(self) -> None:
        self.epoch += 1

    def renew(self) -> None:
        if live := self._live():
            epoch, job, generation = self.holder[self.rng.choice(live)]
            ttl_s = self.rng.choice(
                (math.nan, math.inf, 0.0, *[self.rng.uniform(1, TTL_S_MAX)] * 9)
            )
            reply = self._ask(Renew(self.rng.choice((epoch, self.epoch)), job, generation, ttl_s))
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
        reply = self._ask(Clear(epoch, job, uuids=tuple(told), cause=cause))
        for slot in reply.slots:
            if slot.reason.startswith(STUCK):
                self._over(slot.uuid)
            if slot.accepted and slot.uuid:
                self._over(slot.uuid)
                card = self.cards[slot.uuid]
                keeps = cause != "cleared" and self.settings.power_safe == "keep"
                assert card.clocks_by != OURS, "done before it is answered"
                assert card.limit_by != OURS or keeps or "power" not in slot.reason

    def release(self) -> None:
        for_s = self.rng.choice((1.0, 60.0, 3600.0, 3601.0, -1.0, math.nan))
        reply = self._ask(Release(for_s))
        if 0.0 <= for_s <= 3600.0:
            for uuid in NODE:
                self._over(uuid)
        if reply.slots[0].accepted:
            assert 0.0 <= for_s <= 3600.0
            assert not any(card.clocks_by == OURS for card in self.cards.values())
            self.counts["released"] += 1

    def resume(self) -> None:
        assert self._ask(Resume()).slots[0].accepted

    def nonsense(self) -> None:
        raw = self.rng.randbytes(self.rng.choice((0, 7, wire.REQUEST_BYTES)))
        with pytest.raises(wire.ProtocolError):
            wire.decode_request(raw)

    def wait(self) -> None:
        self._pass(self.rng.choice((0.0, 0.01, 1.0, 5.0, 20.0, 70.0)))
