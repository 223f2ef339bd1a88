"""Names of log events, in one place."""
