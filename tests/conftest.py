"""What holds for every test: nothing is judged by how fast this machine happens to be.

In CI the examples of properties are the same on every run of the same code, so that it judges
the change and not the draw; on a developer's machine they are drawn anew.
"""

import os

from hypothesis import settings

settings.register_profile("patient", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("patient"), derandomize=True)
# For who runs the tests a hundred times over, as tools/mutants does.
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=40)
chosen = os.environ.get("JOULECUT_HYPOTHESIS", "ci" if os.environ.get("CI") else "patient")
settings.load_profile(chosen)
