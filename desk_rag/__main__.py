"""`python -m desk_rag`, and the command `desk-rag`."""

import sys

from desk_rag.cli import signals


def main() -> int:
    """Run one command; a question is sent first to the process that answers for others, if there is one."""
    signals.end_promptly()  # before the other imports, which may take seconds
    from desk_rag.cli.questions import early

    question = early.send(sys.argv[1:])
    from desk_rag.cli.main import main as run

    return run(early=question)


if __name__ == "__main__":
    raise SystemExit(main())
