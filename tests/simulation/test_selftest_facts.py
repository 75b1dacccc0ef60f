"""The file of a self-test in an agent: bound to card and driver, and only ever tighter."""

import os
from pathlib import Path

import pytest
from driven_agent import agent_on, fake_driver
from hypothesis import given
from hypothesis import strategies as st
from running_agent import RunningAgent, eventually

from joulecut_agent import config
from joulecut_agent.control.set_latency import SetLatency
from joulecut_controller.sources.prometheus import Access
from joulecut_wire import card_facts
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.errors import BadInput

DRIVER, VBIOS = "580.0.0-fake", "00.00.00.00.00"


def _facts(uuid: str, driver: str = DRIVER, **measured: object) -> CardFacts:
    return CardFacts(uuid, driver, VBIOS, "NVIDIA A100", 1.7e9, **measured)


def _measured(agent: RunningAgent, *cards: CardFacts) -> None:
    path = agent.home / "facts.json"
    card_facts.save(path, cards)
    agent.config["measured"] = str(path)


def test_measured_facts_replace_assumed_ones() -> None:
    with fake_driver(2) as driver, agent_on(driver) as agent:
        late = {"set_latency_p5_s": 0.3, "set_latency_p95_s": 0.4, "set_latency_max_s": 0.5}
        more = {"unreached_mhz": (615, 630), "counter_scope": "module"}
        first, second = driver.uuids
        _measured(agent, _facts(first, **late, **more), _facts(second, "570.1", **late, **more))
        agent.start()
        mine, other = agent.describe().gpus
        assert (mine.set_latency_p95_s, other.set_latency_p95_s) == (0.4, 0.0)
        assert abs(mine.set_latency_spread_s - 0.1) < 1e-9
        assert {615, 630} & set(mine.clocks_mhz) == set()
        assert {615, 630} <= set(other.clocks_mhz), "another driver: nothing is known of it"
        assert mine.min_dwell_s == other.min_dwell_s == 5.0, "a bound may be tightened for all"
        gpus = eventually("readings", lambda: agent.watch().gpus)
        assert (gpus[0].energy_j, gpus[1].energy_j is None) == (None, False)


def test_a_damaged_file_stops_no_agent() -> None:
    with fake_driver(1) as driver, agent_on(driver) as agent:
        path = agent.home / "facts.json"
        path.write_text('{"version": 1, "cards": [{"uuid": ')
        agent.config["measured"] = str(path)
        agent.start()
        (gpu,) = agent.describe().gpus
        assert (gpu.controllable, gpu.set_latency_p95_s) == (True, 0.0)
        assert "is not used" in agent.log


@given(dwell_s=st.floats(0.0, 100.0), slowest_s=st.floats(0.0, 60.0))
def test_bounds_are_tightened_and_never_loosened(
    tmp_path_factory: pytest.TempPathFactory, dwell_s: float, slowest_s: float
) -> None:
    home = tmp_path_factory.getbasetemp()
    card_facts.save(home / "facts.json", [_facts("GPU-1", set_latency_max_s=slowest_s)])
    path = home / "agent.yaml"
    path.write_text(
        f"device: nvml\nstate_dir: {home}/s\nmeasured: facts.json\n"
        f"bounds: {{min_dwell_s: {dwell_s:.9f}}}"
    )
    assert config.load(path).keeper.bounds.min_dwell_s >= max(dwell_s - 1e-8, 10.0 * slowest_s)


def test_own_changes_count_once_there_are_enough() -> None:
    latency = SetLatency(lambda _: _facts("GPU-1", set_latency_p5_s=0.01, set_latency_p95_s=0.03))
    known = latency.latencies("GPU-1")
    assert (known.p5_s, known.p95_s) == (0.01, 0.03)


def test_a_file_keeps_other_cards_and_refuses_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert card_facts.read(path) == ()
    card_facts.save(path, [_facts("GPU-1"), _facts("GPU-2")])
    card_facts.save(path, [_facts("GPU-2", capped_mhz=1410)])
    first, second = card_facts.read(path)
    assert (first, second.capped_mhz) == (_facts("GPU-1"), 1410)
    assert card_facts.valid_for([first], "GPU-1", DRIVER, "other") is None
    for text in ("", "[]", '{"version": 2, "cards": []}', '{"version": 1, "cards": [{}]}'):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"facts\.json"):
            card_facts.save(path, [_facts("GPU-1")])
        assert path.read_text() == text
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="not a regular file"):
        card_facts.read(tmp_path / "pipe")
    with pytest.raises(BadInput, match="not a regular file"):
        Access(ca=tmp_path / "pipe").context()
