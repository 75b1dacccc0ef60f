"""What runs on every GPU node: it measures, reports, and passes leased commands on.

Two processes: the agent (no privilege) and the keeper (the only one that writes to a GPU).
"""

__version__ = "0.1.0"
