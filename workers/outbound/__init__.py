"""What leaves for other systems: signed requests and mail."""
