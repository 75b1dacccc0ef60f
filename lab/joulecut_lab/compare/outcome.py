"""Everything one comparison shows, as text, JSON or picture, and the ratios they share."""

from dataclasses import dataclass

from joulecut_cli.jobfile import JobFile
from joulecut_lab.compare.setting import Entry, Priced, Setting, cluster_baseline_j

LATE = 1e-6  # relative: what floats differ by is not late


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all rules came to on one job; `fastest` is the baseline."""

    job: JobFile
    setting: Setting
    fastest: Priced
    entries: tuple[Entry, ...]
    perseus_unit_s: float

    def left_out(self) -> str:
        """What the job file says and no rule here is asked about; empty for nothing."""
        return self.job.left_out("jitter", "switching")

    def saving(self, joules: float, of_j: float | None = None) -> float:
        """A fraction of the baseline's energy, or of another."""
        return 1 - joules / (self.fastest.energy_j if of_j is None else of_j)

    def slowdown(self, priced: Priced) -> float:
        return priced.time_s / self.fastest.time_s - 1

    def late(self, priced: Priced) -> float:
        """By what fraction of the deadline; 0 for one that keeps it."""
        over = priced.time_s / self.setting.deadline_s - 1
        return over if over > LATE else 0.0

    def baseline_cluster_j(self) -> tuple[float, ...]:
        """Joules of all pipelines at full speed, for each straggler."""
        return cluster_baseline_j(self.setting, self.fastest)

    def claimed_saving(self, entry: Entry) -> float:
        """What a rule that reckons for itself says it saves."""
        assert entry.claimed is not None
        return self.saving(entry.claimed.energy_j, self._floored(entry).energy_j)

    def claimed_stragglers(self, entry: Entry) -> list[float]:
        """The same for each straggler; empty for a rule without a reckoning of its own."""
        if not entry.claimed_cluster_j:
            return []
        base_j = cluster_baseline_j(self.setting, self._floored(entry))
        pairs = zip(entry.claimed_cluster_j, base_j, strict=True)
        return [self.saving(joules, of_j) for joules, of_j in pairs]

    def _floored(self, entry: Entry) -> Priced:
        """The baseline in Perseus' reckoning: at full speed, floored times."""
        short_s = self.fastest.time_s - entry.claimed_fastest_s
        price_w = self.setting.problem.time_price_w
        return Priced(entry.claimed_fastest_s, self.fastest.energy_j - price_w * short_s)
