"""Telling people and other systems: who wants to hear, what waits, what was delivered."""
