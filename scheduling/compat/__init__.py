"""Job formats and cluster configurations of other systems, as pure functions of a text."""
