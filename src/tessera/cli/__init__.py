"""The command line: the REST API that pages and scripts use too, and the start of a portal."""
