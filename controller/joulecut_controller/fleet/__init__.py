"""Client of all agents: streams and commands over gRPC."""
