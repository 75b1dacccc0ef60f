"""The power budget of a cluster: which jobs slow down for it, and the power limit of every GPU."""
