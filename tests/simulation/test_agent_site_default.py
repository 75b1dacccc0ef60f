"""A site's own clock that a card does not have: said for that GPU, and nothing is set on it."""

from running_agent import RunningAgent, eventually


def test_a_site_default_that_the_card_does_not_have_is_reported() -> None:
    with RunningAgent(cards=2, site_default={"clock_min_mhz": 7, "clock_max_mhz": 1200}) as node:
        node.start()
        for gpu in node.describe().gpus:
            assert not gpu.controllable
            assert gpu.reason.startswith("site_default: ")
            assert "MHz is no clock of this GPU; it has " in gpu.reason
        assert node.log.count("2 of 2 GPUs cannot be controlled: site_default: ") == 1
        assert 'controllable="false"' in node.metrics()
        (result,) = node.apply({0: 1005})
        assert not result.accepted
        assert result.reason.startswith("site_default: ")
        assert node.writes() == 0
        node.config["site_default"] = {"clock_max_mhz": 1200}
        assert node.kill(15) == 0
        node.start()
        assert all(gpu.controllable for gpu in node.describe().gpus)
        assert node.apply({0: 1005})[0].accepted
        node.clear()
        eventually("the site's own clock", lambda: node.locked() == {0: 1200})
