"""What licences of data sets allow, as far as a name tells it. Pure; no legal advice.

Only what is listed here counts as allowed for commercial use: a licence that nobody here knows does not.
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
    """Why rows of this licence are left out of what is used commercially; None where they are not."""
    name = licence_name(licence)
    if name in COMMERCIAL:
        return None
    if "nc" in name.split("-"):
        return f"{licence} forbids commercial use"
    return f"{licence or 'no licence'} is not among those known to allow commercial use"
