"""`import joulecut.auto`: a training script reports its iterations without another change.

Hooks: the first optimizer's step ends an iteration (DeepSpeed: the engine's step);
forwards and backwards of `torch.distributed.pipelining` stages, of every schedule, are its
operations. Modules are hooked when the script imports them; nothing is imported here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from joulecut.import_hook import when_imported
from joulecut.recorder import recorder

OPTIMIZER = "torch.optim.optimizer"
STAGE = "torch.distributed.pipelining.stage"
SCHEDULES = "torch.distributed.pipelining.schedules"
DEEPSPEED = "deepspeed.runtime.engine"
# Classes of torch.distributed.pipelining by the policy's names.
SCHEDULE_NAMES = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ScheduleInterleavedZeroBubble": "zb-h1",
    "ScheduleLoopedBFS": "looped-bfs",  # no policy names it: all forwards, then all backwards
    "ScheduleZBVZeroBubble": "zb-v",
    "ScheduleDualPipeV": "dualpipe-v",
}


@functools.lru_cache(maxsize=None)
def install() -> None:
    """Once a process; later calls do nothing. Never raises."""
    with contextlib.suppress(Exception):
        when_imported(OPTIMIZER, _hook_optimizer)
        when_imported(STAGE, _hook_stage)
        when_imported(SCHEDULES, _hook_schedules)
        when_imported(DEEPSPEED, _hook_deepspeed)


def _hook_optimizer(module: Any) -> None:
    module.register_optimizer_step_post_hook(lambda optimizer, *_: recorder.optimizer(optimizer))


def _hook_deepspeed(module: Any) -> None:
    """At the boundary of gradient accumulation; its optimizers step once for each group."""
    take_step = module.DeepSpeedEngine._take_model_step

    @functools.wraps(take_step)
    def stepped(*args: Any, **keywords: Any) -> Any:
        recorder.ends_elsewhere = True
        result = take_step(*args, **keywords)
        recorder.step()
        return result

    module.DeepSpeedEngine._take_model_step = stepped


def _hook_stage(module: Any) -> None:
    base = module._PipelineStageBase
    _wrap(base, "forward_one_chunk", lambda _: "forward")
    _wrap(base, "backward_one_chunk", _kind_of_backward)
    _wrap(base, "backward_weight_one_chunk", lambda _: "weight")


def _kind_of_backward(keywords: dict[str, Any]) -> str:
    return "backward" if keywords.get("full_backward", True) else "input"


def _wrap(base: Any, name: str, kind_of: Callable[[dict[str, Any]], str]) -> None:
    original = getattr(base, name)

    @functools.wraps(original)
    def timed(self: Any, chunk: int, *args: Any, **keywords: Any) -> Any:
        kind = kind_of(keywords)
        if recorder.stage is None:
            recorder.stage = self.stage_index
        begin = recorder.begin(kind, chunk)
        result = original(self, chunk, *args, **keywords)
        recorder.end(kind, chunk, begin)
        return result

    setattr(base, name, timed)


def _hook_schedules(module: Any) -> None:
    for base in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        _note_shape(base)


def _schedule(kind: type) -> str:
    """Of a class or the nearest of its bases that has a name."""
    names = [SCHEDULE_NAMES.get(one.__name__, "") for one in kind.__mro__]
    return next(filter(None, names), "")


def _note_shape(base: Any) -> None:
    make = base.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **keywords: Any) -> None:
        make(self, *args, **keywords)
        with contextlib.suppress(Exception):
            stages = getattr(self, "_num_stages", None) or self._stages[0].num_stages
            mine = len(getattr(self, "_stages", (None,)))
            recorder.shape = {
                "schedule": _schedule(type(self)),
                "stages": stages // mine,
                "microbatches": self._n_microbatches,
            }

    base.__init__ = made


install()
