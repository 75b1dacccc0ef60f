"""Where evidence comes from: files today, rate sources later.

Each module reads one thing, and says in one line what is wrong with it.
"""
