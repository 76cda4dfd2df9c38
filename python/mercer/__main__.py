"""The command line: ``mercer`` or ``python -m mercer``."""

from __future__ import annotations

import sys

from mercer._cli.program import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
