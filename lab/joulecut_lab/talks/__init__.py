"""What four public talks on energy and models show, computed by this program."""
