"""The operator's command, `joulecut`."""
