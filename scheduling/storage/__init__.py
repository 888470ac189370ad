"""Storage of files outside the database: logs, stored rounds and source archives.

``base`` is the port; ``directory`` and ``objects`` implement it; ``opening`` chooses one by the
settings.
"""
