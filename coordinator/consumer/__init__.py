"""The consumer shells: they ask core.loop for a command, carry it out, and report."""
