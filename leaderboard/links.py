"""Links: addresses of pages in the app, and the parameters that name a list there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import quote, urlencode

from harness.record import Measure
from harness.sanity import cublas_version, driver_version
from leaderboard.examine import protocol_label
from leaderboard.queries import DEFAULTS, ListSummary, RunDetails

FIELDS = {
    "device": "GPU",
    "track": "Track",
    "mode": "Mode",
    "l2_state": "L2 cache",
    "baseline": "Baseline",
    "kind": "Kind",
    "shapes": "Shapes",
    "origin": "Origin",
    "protocol": "Protocol",
    "cublas": "cuBLAS",
    "driver": "Driver",
}
"""Parameters that name a list, with their titles, in the order in which they narrow the choice."""


class Links(Protocol):
    """Where tables lead; an empty address leads nowhere."""

    def submission(self, run: str) -> str:
        """Page of a run."""

    def shape(self, shape: str, parameters: Mapping[str, str]) -> str:
        """Page of a shape on the list that the parameters name."""


class AppLinks:
    """Addresses in the app."""

    def submission(self, run: str) -> str:
        """Page of a run."""
        return f"submission?run={quote(run)}"

    def shape(self, shape: str, parameters: Mapping[str, str]) -> str:
        """Page of a shape."""
        return f"shape?{urlencode({'shape': shape, **parameters})}"


class NoLinks:
    """Of a page that stands alone."""

    def submission(self, run: str) -> str:
        """Nowhere."""
        return ""

    def shape(self, shape: str, parameters: Mapping[str, str]) -> str:
        """Nowhere."""
        return ""


def field_value(summary: ListSummary, field: str) -> str:
    """What a list has for a parameter. A set of shapes is named by its name and the start of its hash."""
    if field == "shapes":
        return f"{summary.shape_set}-{summary.key.shapes_sha256[:8]}"
    return str(getattr(summary.key, field))


def parameters_of(summary: ListSummary) -> dict[str, str]:
    """Everything that names a list."""
    return {field: field_value(summary, field) for field in FIELDS}


def parameters_of_run(details: RunDetails, measure: Measure, baseline: str) -> dict[str, str]:
    """The same for the list that a run is on."""
    header = details.header
    return {
        "device": header.device.profile,
        "track": header.submission.track.value,
        "mode": measure.mode.value,
        "l2_state": measure.l2_state.value,
        "baseline": baseline,
        "kind": header.submission.kind.value,
        "shapes": f"{header.shape_set}-{header.shapes_sha256[:8]}",
        "origin": details.summary.origin.value,
        "protocol": protocol_label(header.protocol),
        "cublas": cublas_version(header.device),
        "driver": driver_version(header.device),
    }


def preferred(found: Sequence[ListSummary], field: str) -> str:
    """What a parameter that is not given means: the usual where there is such a list, else what the largest list has."""
    values = [field_value(each, field) for each in found]
    usual = str(DEFAULTS.get(field, ""))
    return usual if usual in values else values[0]
