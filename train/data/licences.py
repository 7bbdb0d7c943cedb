"""Permissions of data set licences, by their names. Pure; no legal advice.

Only licences listed here count as allowed for commercial use; unknown ones do not.
"""

from __future__ import annotations

from typing import Final

COMMERCIAL: Final = frozenset({
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "odc-by", "odc-by-1.0", "odbl", "pddl", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "unlicense", "public-domain",
})  # fmt: skip
"""Names as the hub writes them."""


def licence_name(text: str) -> str:
    """A licence's name in one spelling: "CC BY-NC 4.0" is cc-by-nc-4.0."""
    return "-".join(text.strip().lower().replace("_", "-").split())


def forbids_commercial_use(licence: str) -> str | None:
    """Return the reason to drop rows of this licence for commercial use; None if they are allowed."""
    name = licence_name(licence)
    if name in COMMERCIAL:
        return None
    if "nc" in name.split("-"):
        return f"{licence} forbids commercial use"
    return f"{licence or 'no licence'} is not among those known to allow commercial use"
