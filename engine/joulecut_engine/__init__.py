"""The numbers: graphs, estimates and optimal clocks. Pure: no I/O, no clock, no thread.

For notebooks and programs there are two functions, which take files too:

    from joulecut_engine import model, plan

    plan("stage_profile.csv", {"schedule": "1f1b", "stages": 8, "microbatches": 12},
         blocking_power_w=83.64, max_slowdown=1).frontier().plot("frontier.png")
    model("llama-3-70b", "dgx-h100", tensor=8, gpus=64, global_batch=64).sweep().to_pandas()
"""

from joulecut_engine.library import model, plan

__all__ = ["model", "plan"]
__version__ = "0.1.0"
