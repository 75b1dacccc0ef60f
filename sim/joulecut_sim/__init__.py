"""Simulated cards, jobs and the demo: how Joulecut is tried, and tested, without a GPU."""
