"""The week's savings of the first screen, from the store; a damaged window costs nothing."""

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import boards
import savings_store

from joulecut_controller.policy.policy import Cost, Policy
from joulecut_controller.ports import Record
from joulecut_controller.store.database import open_store
from joulecut_controller.trust.window import TOPIC
from joulecut_controller.web.week import Week


def test_the_week_is_made_of_all_windows_and_again_for_other_prices(tmp_path: Path) -> None:
    board = boards.board()
    with closing(open_store(f"sqlite:///{tmp_path}/c.db")) as store:
        savings_store.fill(store, time.time())
        store.keep_record(Record(time.time(), TOPIC, "damaged", '{"job": "damaged"}'))

        async def made() -> list[object]:
            week, found = Week(store), []
            for kwh in (0.1, 0.1, 0.2):
                week.refresh(replace(board, policy=Policy(cost=Cost(kwh=kwh))))
                if week._making is not None:
                    await week._making
                found.append(week.newest)
            return found

        first, same, dearer = asyncio.run(made())
    assert isinstance(first, dict)
    assert isinstance(dearer, dict)
    assert first["jobs"] == len(savings_store.JOBS), "the policy's own is one of them"
    assert same is first
    assert dearer["energy_money"]["mid"] > 1.9 * first["energy_money"]["mid"]


def test_without_a_store_or_a_policy_there_is_none() -> None:
    week = Week(None)
    week.refresh(boards.board())
    assert week.newest is None
