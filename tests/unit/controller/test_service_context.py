"""Waiting in the office: for work, or for the order to stop, whichever comes first."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from joulecut_controller import process
from joulecut_controller.service_context import ServiceContext
from joulecut_controller.sources.agents import FileOfAgents


def context(stopping: asyncio.Event) -> ServiceContext:
    """One that has nothing but the order to stop."""
    nothing: dict[str, Any] = dict.fromkeys(one.name for one in fields(ServiceContext))
    return ServiceContext(**{**nothing, "stopping": stopping})


def test_the_order_to_stop_ends_work_that_does_not() -> None:
    ended = list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def story() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_soon(stopping.set)
        await context(stopping).until_stopped(work())

    asyncio.run(story())
    assert ended == ["work"]


def test_what_goes_wrong_with_the_work_is_heard_of() -> None:
    async def work() -> None:
        raise OSError("no more sockets")

    async def story() -> None:
        await context(asyncio.Event()).until_stopped(work())

    with pytest.raises(OSError, match="no more sockets"):
        asyncio.run(story())


def test_a_controller_waits_for_its_first_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "agents.txt"
    waits = iter(["", "# none yet\n", "127.0.0.1:9431\n"])
    monkeypatch.setattr(process.time, "sleep", lambda _: listed.write_text(next(waits)))
    assert process._first_agents(FileOfAgents(listed, encrypted=False)) == ("127.0.0.1:9431",)
    assert capsys.readouterr().err.count("waiting for agents") == 2  # absent, then empty
