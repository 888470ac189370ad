"""The command line: a client of the REST API, and the start of a portal."""
