"""The machines of a run, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.core.events import SiteState
from hocket.results.showing.tally import Speed
from hocket.system.text import counted

SHOWN = 8
"""Sites that have a line of their own in the display."""


def site_lines(sites: Sequence[SiteState], speed: Speed | None) -> list[str]:
    """How many sites there are and how fast they go together, then what each does."""
    lanes = sum(site.lanes for site in sites)
    ready = sum(site.lanes > 0 for site in sites)
    whole = f"{ready} of {counted(len(sites), 'site')} ready, with {counted(lanes, 'lane')}"
    if speed is not None:
        whole += f"; {speed.episodes_per_s:,.2f} episodes/s, {speed.steps_per_s:,.0f} env steps/s"
    told = [
        # An attempt whose end has not come yet leaves its lane to the next one.
        f"{site.name}: {min(site.running, site.lanes)} of {counted(site.lanes, 'lane')} busy, "
        + counted(site.episodes, "episode")
        + (f"; {site.doing}" if site.doing else "")
        if site.lanes
        else f"{site.name}: {site.doing}"
        for site in sites[:SHOWN]
    ]
    more = len(sites) - SHOWN
    return [whole, *told, *([f"and {more} more sites"] if more > 0 else [])]
