"""One per cluster: predicts, lays out, solves, plans, guards, and asks agents for clocks."""

__version__ = "0.1.0"
