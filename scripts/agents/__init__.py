"""Real agents from npm, each in a file: how it is told of the daemon and how it is talked to."""
