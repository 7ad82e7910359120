"""The plan's file, read and honoured or refused."""

from pathlib import Path

from stream.errors import PlanError
from stream.privacy.plan import PrivacyPlan


def read_plan(path: Path) -> PrivacyPlan:
    """Return the plan in ``path``.

    Raises:
        PlanError: the file cannot be read, is no plan, or cannot be honoured.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"the plan {path} cannot be read: {error}") from error
    return PrivacyPlan.from_toml(text)
