"""S10: every joule of a board is booked once: to its job, as a share, or as idle."""

import json
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.monitor.energy_account import SAVE_S, EnergyFile
from joulecut_agent.monitor.job_energy import (
    GAP_S,
    HOLDERS_MAX,
    JOBS_MAX,
    KEEP_S,
    POWER_W_MAX,
    SPELLS_MAX,
    JobEnergy,
)

BOOT = "b0"


class Node:
    """Boards with a power that only this test knows, and agents that come and go."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.uuids = [f"gpu{n}" for n in range(3)]
        self.path = folder / "energy.json"
        self.now_s = 100.0
        self.counter_j = dict.fromkeys(self.uuids, 1e6)
        self.power_w = dict.fromkeys(self.uuids, 60.0)
        self.jobs: dict[str, tuple[str, ...]] = dict.fromkeys(self.uuids, ())
        self.true_j: dict[str, float] = {}  # what jobs alone on a board, and idle boards, drew
        self.board_j = 0.0
        # Between the last reading and a reload nobody can know: for this agent, and for one
        # that would go on from the file.
        self.lost_j, self.lost_to_file_j = 0.0, 0.0
        self.unread_j, self.unsaved_j = 0.0, 0.0
        self.saved_s = 0.0
        self.forgotten_j, self.forgotten_in_file_j = 0.0, 0.0  # of jobs that ended long ago
        self.loads = 0
        self.start()
        self.save()

    def start(self) -> None:
        self.energy = JobEnergy()
        EnergyFile(self.path, BOOT).load(self.energy, self.now_s)
        self.lost_j, self.unread_j = self.lost_to_file_j, self.unsaved_j
        self.forgotten_j = self.forgotten_in_file_j
        self.tick()

    def save(self) -> None:
        EnergyFile(self.path, BOOT).save(self.energy.saved())
        self.lost_to_file_j, self.unsaved_j = self.lost_j, self.unread_j
        self.forgotten_in_file_j = self.forgotten_j
        self.saved_s = self.now_s

    def run(self, seconds: float) -> None:
        self.now_s += seconds
        for uuid in self.uuids:
            joules = self.power_w[uuid] * seconds
            self.counter_j[uuid] += joules
            self.unread_j += joules
            self.unsaved_j += joules
            self.board_j += joules
            holders = self.jobs[uuid]
            if len(holders) <= 1:
                who = holders[0] if holders else "idle"
                self.true_j[who] = self.true_j.get(who, 0.0) + joules

    def tick(self) -> None:
        self.energy.loaded(str(self.loads))
        before = self.energy.books()
        counters = {uuid: (self.now_s, self.counter_j[uuid]) for uuid in self.uuids}
        self.energy.add(counters, self.now_s)
        after = self.energy.books()
        for job in before.measured_j.keys() - after.measured_j.keys():
            self.forgotten_j += before.measured_j[job] + before.estimated_j.get(job, 0.0)
        self.unread_j = 0.0
        if self.now_s - self.saved_s >= SAVE_S:
            self.save()

    def total_j(self) -> float:
        return self.energy.books().total_j() + self.forgotten_j

    def reload(self) -> None:
        self.lost_j += self.unread_j
        self.lost_to_file_j += self.unsaved_j
        self.unread_j, self.unsaved_j = 0.0, 0.0
        self.counter_j = dict.fromkeys(self.uuids, 0.0)
        self.loads += 1

    def give(self, uuid: str, jobs: tuple[str, ...]) -> None:
        self.jobs[uuid] = jobs
        self.energy.hold(uuid, jobs, self.now_s)

    def restart(self, reload_ratio: float = 0.3) -> None:
        """Killed, or asked to go; away for a while in which jobs go on."""
        if self.chance.random() < 0.5:
            self.tick()
            self.save()
        away_s = self.chance.uniform(0.2, 20.0)
        self.run(away_s)
        if self.chance.random() < reload_ratio:
            self.reload()
            self.run(self.chance.uniform(0.5, 5.0))
        self.start()

    def step(self) -> None:
        kind = self.chance.random()
        uuid = self.chance.choice(self.uuids)
        if kind < 0.35:
            several = self.chance.sample(["red", "blue", "green"], self.chance.randint(0, 2))
            self.give(uuid, tuple(sorted(several)))
        elif kind < 0.55:
            self.tick()  # a counter is read before its power changes: powers are no test of books
            self.power_w[uuid] = self.chance.uniform(50.0, 700.0)
        elif kind < 0.58:
            self.reload()
        elif kind < 0.62:
            self.restart()
        self.run(self.chance.uniform(0.01, 3.0))
        if self.chance.random() < 0.8:
            self.tick()


@pytest.mark.parametrize("seed", range(2))
def test_jobs_and_idle_add_up_to_the_boards(tmp_path: Path, seed: int) -> None:
    node = Node(seed, tmp_path)
    for _ in range(400):
        node.step()
    node.tick()
    known_j = node.board_j - node.lost_j
    assert node.total_j() == pytest.approx(known_j, rel=1e-9), f"seed {seed}"
    assert 0.0 < node.lost_j < 0.25 * node.board_j, "reloads happen, and are not everything"


@pytest.mark.parametrize("seed", range(2))
def test_with_a_reading_each_second_the_boards_are_met_within_half_a_percent(
    tmp_path: Path, seed: int
) -> None:
    """Reloads at any moment between two readings, as they come: four in half an hour."""
    node = Node(seed, tmp_path)
    for second in range(1800):
        if second % 400 == 399:
            node.run(node.chance.random())
            node.reload()
        if second % 50 == 0:
            uuid = node.chance.choice(node.uuids)
            node.run(node.chance.random())
            node.give(uuid, tuple(sorted(node.chance.sample(["red", "blue", "green"], second % 3))))
        if second % 300 == 299:
            node.restart(reload_ratio=0.0)
        node.run(1.0)
        node.tick()
    assert node.total_j() == pytest.approx(node.board_j, rel=0.005), f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_who_is_alone_gets_what_the_board_drew(tmp_path: Path, seed: int) -> None:
    """Changes fall between readings: the moment is known, the counter in between is not."""
    node = Node(seed, tmp_path)
    for _ in range(300):
        uuid = node.chance.choice(node.uuids)
        node.give(uuid, ("red",) if node.chance.random() < 0.5 else ())
        node.run(node.chance.uniform(0.01, 2.0))
        if node.chance.random() < 0.5:
            node.tick()
    node.tick()
    books = node.energy.books()
    assert books.measured_j["red"] == pytest.approx(node.true_j["red"], rel=1e-9)
    assert sum(books.idle_j.values()) == pytest.approx(node.true_j["idle"], rel=1e-9)
    assert not books.estimated_j


def test_a_job_shorter_than_a_tick_is_there_and_stays_for_two_scrapes() -> None:
    energy = JobEnergy()
    energy.add({"a": (0.0, 0.0)}, 0.0)
    energy.hold("a", ("brief",), 0.25)
    energy.hold("a", (), 0.5)
    energy.add({"a": (1.0, 400.0)}, 1.0)
    assert energy.books().measured_j == {"brief": pytest.approx(100.0)}
    assert energy.books().idle_j == {"a": pytest.approx(300.0)}
    for second in range(2, int(KEEP_S)):
        energy.add({"a": (float(second), 400.0)}, float(second))
    assert "brief" in energy.books().measured_j
    energy.add({"a": (KEEP_S + 3.0, 400.0)}, KEEP_S + 3.0)
    assert energy.books().measured_j == {}


def test_a_job_between_two_steps_of_the_counter_is_there_with_nothing() -> None:
    energy = JobEnergy()
    energy.add({"a": (0.0, 5.0)}, 0.0)
    energy.hold("a", ("brief",), 0.01)
    energy.hold("a", (), 0.02)
    energy.add({"a": (0.05, 5.0)}, 0.05)
    assert energy.books().measured_j == {"brief": 0.0}


def test_a_board_that_several_share_is_split_once_and_called_an_estimate() -> None:
    energy = JobEnergy()
    energy.add({"a": (0.0, 0.0)}, 0.0)
    energy.hold("a", ("red", "blue"), 0.0)
    energy.add({"a": (1.0, 300.0)}, 1.0)
    energy.hold("a", ("red",), 1.0)
    energy.add({"a": (2.0, 500.0)}, 2.0)
    books = energy.books()
    assert books.estimated_j == {"blue": 150.0, "red": 150.0}
    assert books.measured_j == {"blue": 0.0, "red": 200.0}


def test_a_counter_that_fell_restarted_and_one_that_leapt_is_not_believed() -> None:
    energy = JobEnergy()
    energy.hold("a", ("red",), 0.0)
    for at_s, counter_j in ((0.0, 1e9), (1.0, 1e9 + 100), (2.0, 50.0), (3.0, 1e12), (4.0, 1e12)):
        energy.add({"a": (at_s, counter_j)}, at_s)
    energy.add({"a": (5.0, 1e12 - 1.0)}, 5.0)  # it fell by a joule: no driver load does that
    energy.add({"a": (6.0, 1e12 + 99.0)}, 6.0)
    assert energy.books().measured_j == {"red": pytest.approx(250.0)}
    assert POWER_W_MAX > 1000.0


def test_a_gpu_that_was_away_gets_its_energy_when_it_is_back() -> None:
    energy = JobEnergy()
    energy.hold("a", ("red",), 0.0)
    energy.add({"a": (0.0, 0.0)}, 0.0)
    for second in range(1, 60):
        energy.add({}, float(second))
    energy.add({"a": (60.0, 6000.0)}, 60.0)
    assert energy.books().measured_j == {"red": 6000.0}


changes = st.lists(
    st.tuples(st.floats(0, 10), st.lists(st.sampled_from("uvwxyz"), max_size=6)), max_size=150
)


@given(changes)
def test_no_number_of_changes_between_two_readings_loses_a_joule(
    spells: list[tuple[float, list[str]]],
) -> None:
    energy = JobEnergy()
    energy.add({"a": (0.0, 0.0)}, 0.0)
    for at_s, jobs in spells:
        energy.hold("a", jobs, at_s)  # not even in order
    energy.add({"a": (10.0, 1234.5)}, 10.0)
    assert energy.books().total_j() == pytest.approx(1234.5)
    assert len(energy._boards["a"].spells) <= SPELLS_MAX


def test_jobs_without_end_are_forgotten_in_order() -> None:
    energy = JobEnergy()
    for number in range(3 * JOBS_MAX):
        energy.hold("a", (f"job{number}",), float(number) / 100)
        energy.add({"a": (number / 100, float(number))}, number / 100)
    kept = list(energy.books().measured_j)
    assert kept == [f"job{n}" for n in range(2 * JOBS_MAX, 3 * JOBS_MAX)]
    energy.hold("b", [f"many{n}" for n in range(100)], 99.0)
    energy.add({"b": (99.0, 0.0)}, 99.0)
    assert sum(job.startswith("many") for job in energy.books().measured_j) <= HOLDERS_MAX


class TestTheFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> EnergyFile:
        return EnergyFile(tmp_path / "energy.json", BOOT)

    @pytest.fixture
    def saved(self, file: EnergyFile, tmp_path: Path) -> Path:
        energy = JobEnergy()
        energy.hold("a", ("red",), 0.0)
        energy.add({"a": (0.0, 1000.0)}, 0.0)
        energy.add({"a": (10.0, 2000.0)}, 10.0)
        file.save(energy.saved())
        return tmp_path / "energy.json"

    def test_totals_go_on_and_a_gap_belongs_to_who_was_there(
        self, file: EnergyFile, saved: Path
    ) -> None:
        energy = JobEnergy()
        file.load(energy, 20.0)
        energy.hold("a", (), 20.0)
        energy.add({"a": (20.0, 2500.0)}, 20.0)
        assert energy.books().measured_j == {"red": 1500.0}
        assert saved.stat().st_size < 1000

    def test_after_a_long_gap_the_latency_is_unknown(self, file: EnergyFile, saved: Path) -> None:
        energy = JobEnergy()
        file.load(energy, 10.0 + 4 * GAP_S)
        energy.add({"a": (10.0 + 4 * GAP_S, 2000.0 + 4 * GAP_S)}, 10.0 + 4 * GAP_S)
        assert energy.books().measured_j == {"red": pytest.approx(1000.0 + GAP_S)}
        assert energy.books().idle_j == {"a": pytest.approx(3 * GAP_S)}

    def test_a_reload_that_the_counter_has_outgrown_is_seen(
        self, file: EnergyFile, saved: Path
    ) -> None:
        energy = JobEnergy()
        file.load(energy, 30.0)
        energy.loaded("another")
        energy.add({"a": (30.0, 9000.0)}, 30.0)
        assert energy.books().measured_j == {"red": 10_000.0}, "all of it is new"

    def test_another_boot_has_counters_of_its_own(self, saved: Path) -> None:
        energy = JobEnergy()
        EnergyFile(saved, "b1").load(energy, 5.0)
        energy.add({"a": (5.0, 300.0)}, 5.0)
        assert energy.books().measured_j == {"red": 1000.0}
        assert energy.books().idle_j == {"a": 300.0}

    def test_torn_anywhere_it_is_harmless(self, file: EnergyFile, saved: Path) -> None:
        whole = saved.read_bytes()
        for length in range(len(whole)):
            saved.write_bytes(whole[:length])
            energy = JobEnergy()
            file.load(energy, 20.0)
            assert energy.books().total_j() == 0.0
            energy.add({"a": (20.0, 5.0)}, 20.0)

    @given(
        st.recursive(
            st.none() | st.floats() | st.text(),
            lambda c: st.lists(c) | st.dictionaries(st.text(), c),
            max_leaves=8,
        )
    )
    def test_anything_else_in_it_is_harmless(
        self, tmp_path_factory: pytest.TempPathFactory, what: object
    ) -> None:
        path = tmp_path_factory.mktemp("e") / "energy.json"
        body = json.dumps([1, BOOT, what]).encode()
        path.write_bytes(b"%08x %s" % (zlib.crc32(body), body))
        energy = JobEnergy()
        EnergyFile(path, BOOT).load(energy, 1.0)
        energy.add({"a": (1.0, 5.0)}, 1.0)

    def test_a_directory_in_its_place_is_said_by_who_saves(
        self, file: EnergyFile, tmp_path: Path
    ) -> None:
        (tmp_path / "energy.json").mkdir()
        file.load(JobEnergy(), 0.0)
        with pytest.raises(IsADirectoryError):
            file.save(JobEnergy().saved())
