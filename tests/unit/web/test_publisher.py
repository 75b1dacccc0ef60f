"""Watchers get the newest board and nothing piles up."""

import asyncio
from dataclasses import replace

import boards
import pytest

from joulecut_controller.web.publisher import Closed, Publisher


def test_a_late_watcher_gets_the_newest_board_only() -> None:
    async def watch() -> list[int]:
        publisher = Publisher()
        for number in range(1, 50):
            publisher.publish(replace(boards.empty(), pass_number=number))
        return [(await publisher.next(after)).pass_number for after in (0, 3)]

    assert asyncio.run(watch()) == [49, 49]


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
