"""What jobs say of themselves and of their cards: the newest word counts, and memory is bounded."""

from collections import OrderedDict

from joulecut_engine.estimate.card import Card, named
from joulecut_engine.estimate.estimator import Sample, WorkShape
from joulecut_engine.estimate.pooled import Snapshot

CARDS_MAX = 16_384
WORKLOADS_MAX = 1024


class Told:
    """`cards` names the card of a GPU, `shapes` what a workload computes."""

    def __init__(self) -> None:
        self.cards: OrderedDict[str, str] = OrderedDict()
        self.shapes: OrderedDict[str, WorkShape] = OrderedDict()

    def card(self, sample: Sample) -> Card | None:
        """The card this sample comes from, by its own word or an earlier one."""
        uuid = sample.subject.uuid
        if sample.card:
            self.cards[uuid] = sample.card
            self.cards.move_to_end(uuid)
            while len(self.cards) > CARDS_MAX:
                self.cards.popitem(last=False)
        return named(self.cards.get(uuid, ""))

    def changed(self, sample: Sample) -> bool:
        """Whether the job now says it computes something else than before."""
        known = self.shapes.get(sample.subject.workload)
        return sample.shape is not None and known is not None and known != sample.shape

    def note(self, sample: Sample) -> None:
        if sample.shape is None:
            return
        self.shapes[sample.subject.workload] = sample.shape
        self.shapes.move_to_end(sample.subject.workload)
        while len(self.shapes) > WORKLOADS_MAX:
            self.shapes.popitem(last=False)

    def forget(self, workload: str) -> None:
        """What it computes; its GPUs keep their cards."""
        self.shapes.pop(workload, None)

    def restore(self, held: Snapshot) -> None:
        self.cards.update(held.cards)
        self.shapes.update(held.shapes)
