"""Which device, or which profile, a command works for when it is given a submission."""

from __future__ import annotations

from harness.machine import DeviceChoice, choose_device, cuda_cards
from harness.model import DataError, InfraError
from harness.profiles import DeviceProfile, load_profile, profile_names
from harness.submission import Manifest

AUTO = "auto"
REFERENCE = "h200"
"""Profile that a submission is planned and built for where several fit and no device is named."""


def device_for(manifest: Manifest, name: str) -> DeviceChoice:
    """The device here that runs the submission: the named one, or for `auto` the first that is among its targets.

    Raises:
        DataError: there is no device of that name.
        InfraError: the device does not run it, or none here does.
    """
    here = [choose_device(name)] if name != AUTO else [*cuda_cards(), choose_device("cpu")]
    for choice in here:
        if manifest.runs_on(choice.profile):
            return choice
    targets, there = " ".join(manifest.targets), ", ".join(f"{choice.name} ({choice.profile.architecture})" for choice in here)
    raise InfraError(
        f"no device here can run {manifest.name}, which targets {targets}: there is {there}; "
        "`hgemm check --build-only` plans and builds it without a device."
    )


def names_of(text: str) -> list[str]:
    """Devices of a comma list; the further ones are here.

    Raises:
        DataError: there is no device of that name, or one is named twice.
        InfraError: one is not here.
    """
    first, *others = text.split(",")
    if len({first, *others}) <= len(others):
        raise DataError(f"--device {text} names a device twice.")
    return [first, *(choose_device(other).name for other in others)]


def profile_for(manifest: Manifest, name: str) -> DeviceProfile:
    """The profile to plan and build for: that of the named device or profile, or for `auto` one among the targets.

    Raises:
        DataError: there is neither a profile nor a device of that name, or it is not among the targets.
    """
    if name == AUTO:
        fitting = [profile for profile in map(load_profile, profile_names()) if manifest.runs_on(profile)]
        here = [card.profile for card in cuda_cards() if manifest.runs_on(card.profile)]
        if not fitting:
            raise DataError(
                f"no device profile is among the targets {' '.join(manifest.targets)}; name others in submission.toml."
            )
        reference = [profile for profile in fitting if profile.name == REFERENCE]
        return [*here, *reference, *fitting][0]
    profile = load_profile(name) if name in profile_names() else choose_device(name).profile
    if not manifest.runs_on(profile):
        targets = " ".join(manifest.targets)
        raise DataError(f"{manifest.name} targets {targets}, and {name} is {profile.architecture}; choose another --device.")
    return profile


def device_of(profile: DeviceProfile, name: str) -> DeviceChoice | None:
    """The device here that has the profile: the named one, or the first of that profile; None where there is none."""
    here = [*cuda_cards(), choose_device("cpu")]
    return next((choice for choice in here if choice.profile == profile and name in (AUTO, choice.name, profile.name)), None)
