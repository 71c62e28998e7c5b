"""`python -m desk_rag`: the same as the command `desk-rag`."""

from desk_rag.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
