"""The machines of a run, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.core.events import SiteState

SHOWN = 8
"""Sites that have a line of their own in the display."""


def site_lines(sites: Sequence[SiteState], steps_per_s: float | None) -> list[str]:
    """How many sites there are and how fast they go together, then what each does."""
    lanes = sum(site.lanes for site in sites)
    ready = sum(site.lanes > 0 for site in sites)
    whole = f"{ready} of {len(sites)} sites are ready, with {lanes} lanes"
    if steps_per_s is not None:
        whole += f"; {steps_per_s:,.0f} env steps/s"
    told = [
        f"{site.name}: {site.running} of {site.lanes} lanes run, {site.episodes} episodes"
        + (f"; {site.doing}" if site.doing else "")
        if site.lanes
        else f"{site.name}: {site.doing}"
        for site in sites[:SHOWN]
    ]
    more = len(sites) - SHOWN
    return [whole, *told, *([f"and {more} more sites"] if more > 0 else [])]
