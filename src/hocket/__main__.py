"""`python -m hocket`, and what the `hocket` command calls."""

from __future__ import annotations

import sys

from hocket.cli import main

if __name__ == "__main__":
    sys.exit(main())
