"""OpenPAI jobs, protocol version 2."""
