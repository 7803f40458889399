"""The crash-safe table of trials, attempts and episodes.

Read `ledger.py` first: it is what an engine talks to. `view.py` reads a ledger, also while
another process writes it; `writer.py` is the thread that makes finished episodes durable;
`schema.py` is the file itself; `sweep.py` clears what a killed run left.
"""

from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.rows import RowRecorder, Segment
from hocket.records.ledger.view import Failure, LedgerView
from hocket.records.ledger.writer import LedgerConfig

__all__ = ["Failure", "Ledger", "LedgerConfig", "LedgerView", "RowRecorder", "Segment"]
