"""Lets these tests use the rig of the fleet's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
