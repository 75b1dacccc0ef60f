"""One callback for the Trainer of Hugging Face: `Trainer(..., callbacks=[JoulecutCallback()])`.

With Accelerate alone, `import joulecut.auto` does the same.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from joulecut import auto
from joulecut.recorder import recorder


class JoulecutCallback(TrainerCallback):  # type: ignore[misc]  # the framework has no types here
    """Ends an iteration at each optimizer step of the Trainer."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        auto.install()
        recorder.ends_elsewhere = True

    def on_step_end(self, *_: Any, **__: Any) -> None:
        recorder.step()
