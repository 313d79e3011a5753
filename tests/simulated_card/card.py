"""In place of harness.devices.cuda: operations are products on the CPU, and a launch takes what a table says."""

from __future__ import annotations

from fake_device import Contender, FakeDevice

from harness import bench
from harness.devices import WindowTime
from harness.plan import Layout
from harness.profiles import load_profile
from harness.record import L2State
from harness.run import DeviceInfo
from harness.telemetry import Conditions

bench.MAX_SLOTS = 40
LAUNCH_NS = {
    "submission": 160_000,
    "cublaslt_autotuned": 80_000,
    "cublaslt_heuristic": 100_000,
    "cublas": 120_000,
    "torch_matmul": 128_000,
}
"""Of the fastest candidate; each contender has slower ones too."""
READINGS = Conditions(sm_clock_mhz=1_900, memory_clock_mhz=3_201, power_mw=300_000, temperature_c=40, throttle_reasons="0x0")
LIBRARIES = {"torch": "2.11.0", "cublasLt": "130100", "cuda runtime": "13010", "nvidia-cublas": "13.1.0"}


class CudaDevice(FakeDevice):
    """A card `cuda:N`."""

    def __init__(self, index: int) -> None:
        baselines = {
            name: {
                f"{layout}/{rank}": Contender(launch_ns=int(launch_ns * (1 + 0.1 * rank)), layout=layout)
                for layout in Layout
                for rank in range(3)
            }
            for name, launch_ns in LAUNCH_NS.items()
            if name != "submission"
        }
        super().__init__(Contender(launch_ns=LAUNCH_NS["submission"]), baselines)
        # A small cache needs little memory around it.
        self.profile = load_profile("h200").model_copy(update={"l2_bytes": 1 << 20})
        self.info = DeviceInfo(
            profile="h200",
            name="NVIDIA H200",
            uuid=f"GPU-00000000-0000-0000-0000-{index + 1:012}",
            driver="580.0",
            libraries=LIBRARIES,
            timer="simulated",
            conditions={"foreign_processes": "0"},
        )

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        time = super().window(key, slots, l2_state, unscored)
        return time.model_copy(update={"sm_clock_mhz": READINGS.sm_clock_mhz})

    def conditions(self) -> Conditions:
        return READINGS
