"""What holds for every test: nothing is judged by how fast this machine happens to be.

In CI the examples of properties are the same on every run of the same code, so that it judges
the change and not the draw; on a developer's machine they are drawn anew.
"""

import os

from hypothesis import settings

settings.register_profile("patient", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("patient"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")
