"""The numbers: graphs, estimates and optimal clocks. Pure: no I/O, no clock, no thread."""

__version__ = "0.1.0"
