"""The cluster as one screen shows it: power, savings, jobs, and what needs a person. Pure, but for
the history, which a store keeps.
"""
