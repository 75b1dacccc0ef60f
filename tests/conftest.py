"""What holds for every test: nothing is judged by how fast this machine happens to be."""

from hypothesis import settings

settings.register_profile("patient", deadline=None, print_blob=True)
settings.load_profile("patient")
