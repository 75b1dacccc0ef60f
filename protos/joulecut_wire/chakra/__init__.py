"""The published schema of Chakra execution traces, generated from et_def.proto by `make proto`."""
