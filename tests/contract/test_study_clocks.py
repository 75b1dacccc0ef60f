"""A study's clocks through a real agent and keeper: leased, and given back."""

import pytest
from running_agent import RunningAgent, eventually

from joulecut_lab.study.agent_clocks import JOB, AgentClocks
from joulecut_wire.errors import BadInput, Unavailable


def test_clocks_are_leased_and_given_back() -> None:
    with RunningAgent(cards=2) as node:
        node.start()
        address, uuid = node.address, node.gpus.uuid(1)
        clocks = AgentClocks(address, uuid)
        try:
            assert clocks.choices_mhz() == node.gpus.sku.clocks_mhz
            for clock in (900, 1200, 600):
                clocks.ask(clock)
                assert node.locked() == {1: clock}
            lease = eventually("the lease", lambda: node.watch().gpus[1].lease)
            assert lease.job == JOB
            with pytest.raises(Unavailable, match=f"job {JOB} holds this GPU's clock"):
                AgentClocks(address, uuid)
        finally:
            clocks.close()
        clocks.close()
        eventually("the restore", lambda: not node.locked())
        again = AgentClocks(address, uuid)  # an earlier study's numbers do not shut it out
        again.ask(900)
        assert node.locked() == {1: 900}
        again.close()
        eventually("the restore", lambda: not node.locked())
        assert node.describe().epoch_seen == 1  # no new term: no controller is put off


def test_what_a_job_holds_is_left_alone() -> None:
    with RunningAgent(cards=1) as node:
        node.start()
        (held,) = node.apply({0: 1005}, epoch=4, generation=9, job="training")
        assert held.accepted
        eventually("the lease", lambda: node.watch().gpus[0].lease)
        with pytest.raises(Unavailable, match="job training holds this GPU's clock"):
            AgentClocks(node.address, node.gpus.uuid(0))
        assert node.locked() == {0: 1005}
        (cleared,) = node.clear(epoch=4, job="training")
        assert cleared.accepted
        eventually("the restore", lambda: not node.locked())
        eventually("the lease's end", lambda: node.watch().gpus[0].lease is None)
        clocks = AgentClocks(node.address, node.gpus.uuid(0))
        clocks.ask(750)  # of the same term, with a later number than the job's last
        assert node.locked() == {0: 750}
        clocks.close()
        assert node.describe().epoch_seen == 4


def test_no_such_agent_and_no_such_gpu() -> None:
    for bad in ("", "host", "127.0.0.1:9431", "unix:"):
        with pytest.raises(BadInput, match="--lock-via"):
            AgentClocks(bad, "GPU-x")
    with RunningAgent(cards=1) as node:
        node.start()
        with pytest.raises(Unavailable, match="has no GPU GPU-x"):
            AgentClocks(node.address, "GPU-x")
    with pytest.raises(Unavailable, match="no agent answers at unix:/nowhere"):
        AgentClocks("unix:/nowhere.sock", "GPU-x")
