"""Which orders a running agent refuses, and what of a refused one is left: real processes."""

import re
import signal

from running_agent import LOWER, RunningAgent, accepted


def test_an_older_epoch_is_refused_after_a_restart(live: RunningAgent) -> None:
    older, newer = live.epoch, live.epoch + 1
    assert accepted(live.apply(LOWER, epoch=newer))
    assert live.describe().epoch_seen == newer
    live.replace_keeper()
    assert live.describe().epoch_seen == newer
    assert not any(r.accepted for r in live.apply(LOWER, epoch=older, generation=99))
    assert not any(r.accepted for r in live.renew(epoch=older))
    assert not any(r.accepted for r in live.clear(epoch=older))
    assert not live.locked()
    assert live.kill(signal.SIGTERM) == 0
    live.start()
    refused = live.apply(LOWER, epoch=older, generation=99)
    assert {r.accepted for r in refused} == {False}
    assert f"{older} is older than {newer}" in refused[0].reason


def test_every_message_follows_at_least_the_commands_that_were_answered_before_it(
    live: RunningAgent,
) -> None:
    carried = live.watch().carried_out
    before = carried.number
    for generation in (1, 2, 3):
        assert accepted(live.obey({0: 1200 - 15 * generation}, generation=generation))
        shown = live.watch()
        assert shown.carried_out.number > before
        assert (shown.carried_out.epoch, shown.carried_out.generation) == (live.epoch, generation)
        lease = shown.gpus[0].lease
        assert lease.generation == generation
        before = shown.carried_out.number
    assert accepted(live.clear())
    shown = live.watch()
    assert shown.carried_out.number > before
    assert shown.gpus[0].lease is None


def test_without_permission_it_measures_and_says_so_once() -> None:
    with RunningAgent(simulated={"permission": "none"}) as node:
        node.start()
        assert {gpu.controllable for gpu in node.describe().gpus} == {False}
        reason = "the simulated driver gives no right to set clocks"
        assert {gpu.reason for gpu in node.describe().gpus} == {reason}
        refused = node.apply(LOWER)
        assert {(result.accepted, result.reason) for result in refused} == {(False, reason)}
        assert node.writes() == 0
        [line] = re.findall(r"^joulecut_gpu_info{.*index=\"0\".*$", node.metrics(), re.MULTILINE)
        assert 'controllable="false"' in line
        assert f'reason="{reason}"' in line
        assert node.gpu().energy_j is not None
        assert node.log.count("cannot set clocks") == 1
        assert node.restore().stdout == "nothing to restore\n"


def test_bounds_of_the_site_hold() -> None:
    bounds = {
        "clock_min_mhz": 810,
        "clock_max_mhz": 1305,
        "min_dwell_s": 30,
        "changed_share_per_minute": 0.5,
    }
    with RunningAgent(bounds=bounds, lease={"ttl_s_max": 20}) as node:
        node.start()
        about = node.describe()
        assert (about.ttl_max_s, about.gpus[0].min_dwell_s) == (20.0, 30.0)
        assert (about.gpus[0].clock_min_mhz, about.gpus[0].clock_max_mhz) == (810, 1305)
        for clocks, ttl_s, why in (
            ({0: 795}, 10.0, "below the site's 810"),
            ({0: 1410}, 10.0, "above the site's 1305"),
            ({0: 1005}, 20.5, "up to 20 s"),
            ({0: 1005, 1: 1005, 2: 1005}, 10.0, "3 of 4 GPUs"),
        ):
            refused = node.apply(clocks, ttl_s=ttl_s)
            assert not any(result.accepted for result in refused)
            assert why in refused[0].reason
        assert node.writes() == 0
        assert accepted(node.apply({0: 1200, 1: 1200}, ttl_s=20.0))
        assert "dwell" in node.apply({0: 1005}, generation=2, ttl_s=20.0)[0].reason
        assert accepted(node.apply({0: 1305}, generation=3, ttl_s=20.0)), "up never waits"
        assert accepted(node.clear())
        assert not node.locked()
