"""The node part of Tessera: standard library only, for Python 3.8, shipped as a zipapp."""
