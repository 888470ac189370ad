"""Django's database engines, which write the links of the audit chain before each commit."""
