"""The node's side of Tessera: standard library only, parsed by Python 3.8, shipped as a zipapp."""
