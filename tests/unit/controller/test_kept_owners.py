"""Who was first outlives a controller, also where its store answers garbage for a while."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulecut_controller import term
from joulecut_controller.election.claims import Claims
from joulecut_controller.fleet.gpu_owners import GpuOwners
from joulecut_controller.store.database import open_store

HONEST, LIAR = "unix:/n0.sock", "unix:/n3.sock"
FIRST = '{"GPU-0":["unix:/n0.sock","n0"]}'


async def _until(true: Any) -> None:
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("garbage", ["", "{", "null", '{"a": [1]}', FIRST[:20]])
def test_a_store_of_garbage_for_a_while_costs_no_node_its_gpus(
    garbage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term, "OWNERS_EVERY_S", 0.01)
    store, owners = open_store(f"sqlite:///{tmp_path}/s.db"), GpuOwners()
    context: Any = SimpleNamespace(store=store, fleet=SimpleNamespace(owners=owners))
    for address, node in ((LIAR, "n3"), (HONEST, "n0")):
        owners.claim(address, node, {"GPU-0"}, (HONEST, LIAR), 1.0)
    assert owners.conflict("GPU-0")
    store.keep_learnt(term.OWNERS, garbage)

    async def term_of_a_controller() -> None:
        keeping = asyncio.create_task(term._keep_owners(context, Claims(1)))
        await asyncio.sleep(0.1)
        assert store.learnt(term.OWNERS) == garbage, "nothing is written over it"
        store.keep_learnt(term.OWNERS, FIRST)
        await _until(lambda: not owners.conflict("GPU-0"))
        assert owners.owns(HONEST, "GPU-0")
        monkeypatch.setattr(term, "EQUAL_S", 0.0)
        owners.adopt("n3")
        await _until(lambda: LIAR in store.learnt(term.OWNERS))
        keeping.cancel()

    asyncio.run(term_of_a_controller())
    store.close()
