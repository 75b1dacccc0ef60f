"""From what agents and jobs said to one `View`: who works what, and what it took and drew."""
