"""Watchers get the newest board and nothing piles up."""

import asyncio
import math
from dataclasses import replace

import boards
import pytest

from joulecut_controller.web.publisher import Closed, Publisher


def test_there_is_nothing_before_the_first_pass() -> None:
    publisher = Publisher()
    assert publisher.current() is None
    assert publisher.age_s() == math.inf


def test_a_watcher_wakes_for_a_new_board() -> None:
    async def watch() -> int:
        publisher = Publisher()
        publisher.publish(boards.empty())
        waiting = asyncio.create_task(publisher.next(after_pass=1))
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher.publish(replace(boards.empty(), pass_number=2))
        return (await waiting).pass_number

    assert asyncio.run(watch()) == 2


def test_a_late_watcher_gets_the_newest_board_only() -> None:
    async def watch() -> list[int]:
        publisher = Publisher()
        for number in range(1, 50):
            publisher.publish(replace(boards.empty(), pass_number=number))
        return [(await publisher.next(after)).pass_number for after in (0, 3)]

    assert asyncio.run(watch()) == [49, 49]


def test_a_restarted_controller_counts_from_one_again() -> None:
    async def watch() -> int:
        publisher = Publisher()
        publisher.publish(replace(boards.empty(), pass_number=1))
        return (await publisher.next(after_pass=900)).pass_number

    assert asyncio.run(watch()) == 1


def test_closing_ends_every_watcher() -> None:
    async def watch() -> list[object]:
        publisher = Publisher()
        publisher.publish(boards.empty())
        waiting = [asyncio.create_task(publisher.next(1)) for _ in range(3)]
        await asyncio.sleep(0)
        publisher.close()
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    assert all(isinstance(end, Closed) for end in asyncio.run(watch()))


def test_a_closed_publisher_refuses_new_watchers() -> None:
    async def watch() -> None:
        publisher = Publisher()
        publisher.publish(boards.empty())
        publisher.close()
        await publisher.next(0)

    with pytest.raises(Closed):
        asyncio.run(watch())
