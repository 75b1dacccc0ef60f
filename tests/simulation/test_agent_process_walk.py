"""A seeded walk over everything that may befall a node, with the one promise checked from outside.

Whatever is asked of it and whoever is killed: no GPU stays locked without a live lease. Where one
does for longer than it takes to notice, the walk stands still until it is given back: by the node
itself, as nobody asks anything meanwhile, and however slow this machine is. What an accepted
answer promised is all that the check knows.
"""

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from running_agent import RunningAgent, eventually

from joulecut_sim.card import StateFile
from joulecut_wire.messages import Result

STEPS = 150
TTL_S_MAX = 1.0
GRACE_S = 6.0  # a keeper that starts on a busy machine, and a restore that is tried again
CLOCKS_MHZ = (705, 900, 1005, 1200, 1410)
BAD_CLOCKS_MHZ = (1001, 60_000)
BAD_TTLS_S = (0.0, -1.0, math.nan, math.inf, TTL_S_MAX * 1.01)


class Watch(threading.Thread):
    """Looks at the devices all the time; `until_s` is when each GPU's lease ends at the latest."""

    def __init__(self, state: Path, cards: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.until_s = [0.0] * cards
        self.excused_s = 0.0
        self.beyond_s = [0.0] * cards
        self._state = state
        self._over = threading.Event()

    def run(self) -> None:
        state = StateFile.open(self._state)
        free_s = [time.monotonic()] * len(self.until_s)  # no lock is there before it starts
        while not self._over.wait(0.02):
            for index, until_s in enumerate(self.until_s):
                now_s = time.monotonic()
                if state.asked_mhz(index)[1]:
                    self.beyond_s[index] = now_s - max(until_s, self.excused_s, free_s[index])
                else:  # a lock is there before its answer is
                    free_s[index], self.beyond_s[index] = now_s, 0.0
        state.close()

    def nothing_late(self) -> bool:
        return max(self.beyond_s) < GRACE_S

    def excuse(self) -> None:
        """Until now nobody could have restored anything."""
        self.excused_s = time.monotonic()

    def stop(self) -> None:
        self._over.set()
        self.join()


class Walk:
    """One node and the choices of one seed."""

    def __init__(self, node: RunningAgent, watch: Watch, seed: int) -> None:
        self._node, self._watch, self._random = node, watch, random.Random(seed)
        self._epoch, self._generation = 1, 0
        self._epoch_accepted = 0
        self.accepted = 0

    def step(self) -> str:
        acts: dict[Callable[[], None], int] = {
            self.good_apply: 30, self.bad_apply: 12, self.renew: 16, self.clear: 6,
            self.older: 8, self.term: 4, self.kill_keeper: 5, self.kill_agent: 2,
            self.kill_both: 2, self.freeze_agent: 2, self.freeze_keeper: 2, self.lose_gpu: 4,
            self.restore: 2, self.wait: 8,
        }  # fmt: skip
        (act,) = self._random.choices(list(acts), list(acts.values()))
        with contextlib.suppress(grpc.RpcError, ProcessLookupError):
            act()
        return act.__name__

    def good_apply(self) -> None:
        self._generation += 1
        self._apply(self._clocks(), self._epoch, self._random.uniform(0.2, TTL_S_MAX))

    def bad_apply(self) -> None:
        self._generation += 1
        clocks = self._clocks()
        if self._random.random() < 0.5:
            clocks[next(iter(clocks))] = self._random.choice(BAD_CLOCKS_MHZ)
            results = self._apply(clocks, self._epoch, TTL_S_MAX)
        else:
            results = self._apply(clocks, self._epoch, self._random.choice(BAD_TTLS_S))
        assert not any(result.accepted for result in results)

    def older(self) -> None:
        """An older epoch or generation; where the newer one was never accepted it may pass."""
        if self._random.random() < 0.5:
            self._apply(self._clocks(), self._epoch - 1, TTL_S_MAX)
        else:
            results = self._node.apply(
                self._clocks(), epoch=self._epoch, generation=0, ttl_s=math.inf
            )
            assert not any(result.accepted for result in results)

    def term(self) -> None:
        self._epoch += 1

    def renew(self) -> None:
        results = self._node.renew(epoch=self._epoch, generation=self._generation, ttl_s=TTL_S_MAX)
        self._promised({r.uuid for r in results if r.accepted}, TTL_S_MAX)

    def clear(self) -> None:
        self._node.clear(epoch=self._epoch)

    def kill_keeper(self) -> None:
        if keeper := self._keeper():
            os.kill(keeper, self._random.choice((signal.SIGKILL, signal.SIGTERM)))

    def kill_agent(self) -> None:
        self._node.kill()
        self._node.start()

    def kill_both(self) -> None:
        keeper = self._keeper()
        if keeper:
            os.kill(keeper, signal.SIGSTOP)
        self._node.kill()
        if keeper:
            os.kill(keeper, signal.SIGKILL)
        self._node.start()
        self._watch.excuse()

    def freeze_agent(self) -> None:
        assert self._node.process is not None
        self._node.process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.0, 1.5))
        self._node.process.send_signal(signal.SIGCONT)

    def freeze_keeper(self) -> None:
        """For longer than a lease: what ran out meanwhile goes back as soon as it goes on."""
        if keeper := self._keeper():
            os.kill(keeper, signal.SIGSTOP)
            time.sleep(self._random.uniform(0.0, 2.0 * TTL_S_MAX))
            os.kill(keeper, signal.SIGCONT)
            self._watch.excuse()

    def lose_gpu(self) -> None:
        index = self._random.randrange(self._node.gpus.cards)
        self._node.gpus.set_lost(index)
        with contextlib.suppress(grpc.RpcError):
            self.good_apply()
        self._node.gpus.set_lost(index, False)
        self._watch.excuse()

    def restore(self) -> None:
        self._node.restore()

    def wait(self) -> None:
        time.sleep(self._random.uniform(0.0, 0.5))

    def _clocks(self) -> dict[int, int]:
        count = self._random.randint(1, self._node.gpus.cards)
        indexes = self._random.sample(range(self._node.gpus.cards), count)
        return {index: self._random.choice(CLOCKS_MHZ) for index in indexes}

    def _apply(self, clocks_mhz: dict[int, int], epoch: int, ttl_s: float) -> tuple[Result, ...]:
        results = self._node.apply(
            clocks_mhz, epoch=epoch, generation=self._generation, ttl_s=ttl_s
        )
        assert len({result.accepted for result in results}) == 1, "all or nothing"
        if results[0].accepted:
            assert epoch >= self._epoch_accepted
            self._epoch_accepted = epoch
            self.accepted += 1
            self._promised({result.uuid for result in results}, ttl_s)
        return results

    def _promised(self, uuids: set[str], ttl_s: float) -> None:
        until_s = time.monotonic() + ttl_s
        for index, uuid in enumerate(self._node.gpus.uuids):
            if uuid in uuids:
                self._watch.until_s[index] = until_s

    def _keeper(self) -> int:
        """The pid of the agent's child now; 0 while there is none."""
        assert self._node.process is not None
        pid = self._node.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0


@pytest.fixture
def node() -> Iterator[RunningAgent]:
    with RunningAgent(lease={"ttl_s_max": TTL_S_MAX}) as running:
        yield running.start()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_no_gpu_stays_locked_without_a_lease(node: RunningAgent, seed: int) -> None:
    watch = Watch(node.state_dir / "gpus.state", node.gpus.cards)
    walk = Walk(node, watch, seed)
    watch.start()
    history = []
    try:
        while len(history) < STEPS or walk.accepted <= STEPS / 10:
            assert len(history) < 10 * STEPS, "a walk in which nothing is locked shows nothing"
            history.append(walk.step())
            if not watch.nothing_late():
                eventually(f"given back: {seed}, {history}, {node.log}", watch.nothing_late)
        eventually("all at default", lambda: not node.locked())
    finally:
        watch.stop()
    assert "Traceback" not in node.log
    assert node.kill(signal.SIGTERM) == 0
