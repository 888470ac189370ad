"""Lets ``python -m tessera.cli`` run the command line."""

from tessera.cli.main import main

if __name__ == "__main__":
    main()
