"""Work of stages as a model of the run predicts it: where to step first, never how late a job is.

Predictions are wrong by 10 to 20 %, so only the order of stages is taken from them.
"""

from joulecut_engine.graph.pipeline import KINDS, Profile


def work_prior(profile: Profile, default_mhz: int) -> tuple[float, ...]:
    """Predicted seconds of a forward and a backward, by stage, at the highest clock that the job
    runs at. `profile` has every stage and kind of `KINDS`.
    """

    def seconds(stage: int) -> float:
        works = [profile.options[stage, kind] for kind in KINDS]
        held = [[one for one in own if one.clock_mhz <= default_mhz] or own[:1] for own in works]
        return sum(max(own, key=lambda one: one.clock_mhz).time_s for own in held)

    return tuple(seconds(stage) for stage in range(profile.stages))
