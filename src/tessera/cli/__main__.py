"""Entry point of ``python -m tessera.cli``."""

from tessera.cli.main import main

if __name__ == "__main__":
    main()
