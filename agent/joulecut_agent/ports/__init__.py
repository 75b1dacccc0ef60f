"""What the agent asks of a device, split by who may ask.

Reading and writing are two ports, because they run in two processes with two
privileges; the keeper imports the writing one alone. A back end (entry-point group
`joulecut.devices`) offers both; one conformance suite holds every back end to the
same behaviour.
"""
