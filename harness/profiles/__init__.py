"""DeviceProfile: frozen facts about a device that a plan may use, so that planning and building need no device."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated

from pydantic import Field, ValidationError

from harness.model import Count, DataError, Model, Name, Positive, one_sentence
from harness.problem import Problem


class DeviceProfile(Model):
    """What a plan, a floor and a regime need to know of a device."""

    name: Name
    """Short name, as in `--device h200`."""
    gpu_name: str
    """Substring by which the driver's device name is recognised; empty for the cpu."""
    architecture: Annotated[str, Field(pattern=r"^(sm_\d+[af]?|cpu)$")]
    """Target of compilation, such as sm_90a."""
    sm_count: Positive
    """Streaming multiprocessors (1 for the cpu: one pinned thread)."""
    max_clock_mhz: Positive
    """Maximum clock of the multiprocessors."""
    peak_flops_per_clock_per_sm: Positive
    """Dense fp16 operations per clock and multiprocessor with fp32 accumulation (a fused multiply-add counts as two)."""
    peak_flops_per_clock_per_sm_f16: Positive
    """The same with fp16 accumulation."""
    shared_bytes_per_block: Count
    """Largest dynamic shared memory of one CTA."""
    shared_bytes_per_sm: Count
    """Shared memory of one multiprocessor."""
    registers_per_sm: Count
    """32-bit registers of one multiprocessor."""
    l2_bytes: Positive
    """Last-level cache."""
    memory_bytes: Positive
    """Device memory."""
    pin_bandwidth_bytes_per_s: Positive
    """Memory bandwidth by the data sheet: nothing is faster."""
    copy_bandwidth_bytes_per_s: Positive
    """Bandwidth of a large copy, read plus written, as measured or estimated: the roof in plots."""
    sustained_flops_per_s: Positive
    """fp16 matrix product rate reached in practice, as measured or estimated: the roof in plots and regimes."""
    max_cluster: Positive = 1
    """Largest portable cluster in CTAs."""
    source: str
    """Where these numbers come from."""

    @property
    def is_cpu(self) -> bool:
        """Whether this is the embedded CPU device."""
        return self.architecture == "cpu"

    def peak_flops_per_s(self, problem: Problem) -> float:
        """Rate that no kernel of the problem's track exceeds at the maximum clock."""
        f16 = problem.track == "f16"
        per_clock = self.peak_flops_per_clock_per_sm_f16 if f16 else self.peak_flops_per_clock_per_sm
        return float(self.sm_count) * per_clock * self.max_clock_mhz * 1e6

    def limit_ns(self, problem: Problem, cold: bool) -> float:
        """Time in nanoseconds below which a measurement is wrong, before slack."""
        compute = problem.flops / self.peak_flops_per_s(problem)
        memory = problem.compulsory_bytes_cold(self.l2_bytes) / self.pin_bandwidth_bytes_per_s if cold else 0.0
        return max(compute, memory) * 1e9

    def roof_ns(self, problem: Problem) -> float:
        """Speed-of-light time in nanoseconds at rates reached in practice; regimes and plots use it."""
        compute = problem.flops / self.sustained_flops_per_s
        return max(compute, problem.bytes_total / self.copy_bandwidth_bytes_per_s) * 1e9


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles."""
    folder = resources.files("harness.profiles")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_profile(name: str) -> DeviceProfile:
    """The shipped profile of that name.

    Raises:
        DataError: there is none.
    """
    if name not in profile_names():
        raise DataError(f"no device profile is called {name!r}; there are {', '.join(profile_names())}.")
    text = resources.files("harness.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    try:
        return DeviceProfile.model_validate({"name": name, **tomllib.loads(text)})
    except ValidationError as error:
        raise DataError(f"profile {name} is not valid: {one_sentence(error)}.") from error


def match_profile(gpu_name: str) -> DeviceProfile:
    """The profile of a device by the name its driver gives (longest match wins, so "H200 NVL" may have its own).

    Raises:
        DataError: no profile fits.
    """
    profiles = [load_profile(name) for name in profile_names()]
    fitting = [profile for profile in profiles if profile.gpu_name and profile.gpu_name in gpu_name]
    if not fitting:
        raise DataError(f"no device profile fits {gpu_name!r}; add harness/profiles/NAME.toml (docs/architecture.md says how).")
    return max(fitting, key=lambda profile: len(profile.gpu_name))
