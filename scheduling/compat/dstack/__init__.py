"""Tasks and fleets of dstack."""
