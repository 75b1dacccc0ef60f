"""Device ports of the agent: reading and writing.

Two ports, because they run in two processes with two privileges; the keeper imports the writing one
only. A back end (entry-point group `joulecut.devices`) implements both, and passes one conformance
suite.
"""
