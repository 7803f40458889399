"""What a user of the engine chooses about attempts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    retries: int = 2
    """More attempts at a trial whose attempt was lost to a fault."""
    max_steps: int | None = None
    """Ends every episode here; None leaves it to the task."""
    gives_back: bool = False
    """Whoever hands out the trials decides what becomes of a lost attempt: it is told as
    AttemptFailed, `again` where the trial is not to blame, and neither runs again here nor ends as
    an ERROR."""
    final_observation: bool = False
    """Observe when an episode ends, and tell readers what was seen."""
    compares_starts: bool = False
    """Reset the first trial of each suite twice, and tell readers whether it started the same."""
