"""Django's database engines, with the audit's chain extended right before each commit."""
