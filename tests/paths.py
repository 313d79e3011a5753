"""Where the processes that tests start find modules."""

from __future__ import annotations

import os
from pathlib import Path


def path_with(*directories: Path) -> str:
    """PYTHONPATH with these directories before what it holds already."""
    return os.pathsep.join([*map(str, directories), *filter(None, [os.environ.get("PYTHONPATH")])])
