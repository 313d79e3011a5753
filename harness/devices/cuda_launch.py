"""From a Plan to launches: modules, attributes, kernel parameters and tensor maps, through the CUDA driver API."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness.devices import BufferSet, MachineFault, SubmissionFault
from harness.plan import (
    Argument,
    Buffer,
    Interleave,
    Kernel,
    L2Promotion,
    Launch,
    Memset,
    OutOfBoundsFill,
    Plan,
    Pointer,
    Scalar,
    ScalarType,
    Struct,
    Swizzle,
    Table,
    TensorMap,
    TensorMapType,
    struct_layout,
)
from harness.record import Reason

Enqueue = Callable[[BufferSet], None]

FAULTS = frozenset({
    "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
    "HARDWARE_STACK_ERROR", "ASSERT", "LAUNCH_TIMEOUT", "TENSOR_MEMORY_LEAK", "LAUNCH_FAILURE",
})  # fmt: skip
"""Errors that a kernel causes and that end its context, by the end of their names in both APIs."""

_SCALAR_CODES = {
    ScalarType.I32: "<i",
    ScalarType.U32: "<I",
    ScalarType.I64: "<q",
    ScalarType.U64: "<Q",
    ScalarType.F32: "<f",
    ScalarType.F64: "<d",
}


class Module:
    """Loads built kernels, each once, and keeps them."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._libraries: dict[str, Any] = {}

    def kernel(self, path: str, kernel: Kernel, dynamic_shared_bytes: int, cluster_ctas: int) -> Any:
        """The entry of a cubin, with the attributes that the plan asks for.

        Raises:
            SubmissionFault: the driver refuses the cubin or an attribute.
        """
        from cuda.bindings import driver

        if path not in self._libraries:
            image = Path(path).read_bytes()
            self._libraries[path] = check(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
        entry = check(driver.cuLibraryGetKernel(self._libraries[path], kernel.entry.encode()))
        attributes = driver.CUfunction_attribute
        wanted = {}
        if dynamic_shared_bytes > 48 << 10:
            wanted[attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = dynamic_shared_bytes
        if kernel.shared_carveout_percent is not None:
            wanted[attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = kernel.shared_carveout_percent
        if cluster_ctas > 8:
            wanted[attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        for attribute, value in wanted.items():
            check(driver.cuKernelSetAttribute(attribute, value, entry, self._device))
        return entry


class BoundPlan:
    """A plan bound to a device: `enqueue(buffers)` puts one operation on the stream."""

    def __init__(self, plan: Plan, artifacts: dict[str, str], modules: Module, stream: int) -> None:
        launches = [step for step in plan.steps if isinstance(step, Launch)]
        shared = {name: max(s.dynamic_shared_bytes for s in launches if s.kernel == name) for name in plan.kernels}
        clusters = {name: max(_ctas(s) for s in launches if s.kernel == name) for name in plan.kernels}
        entries = {
            name: modules.kernel(artifacts[name], kernel, shared[name], clusters[name]) for name, kernel in plan.kernels.items()
        }
        self._steps: list[Enqueue] = []
        for step in plan.steps:
            if isinstance(step, Launch):
                self._steps.append(_BoundLaunch(step, entries[step.kernel], stream).enqueue)
            elif isinstance(step, Memset):
                self._steps.append(_memset(step, stream))

    def enqueue(self, buffers: BufferSet) -> None:
        """Put one operation on the stream.

        Raises:
            SubmissionFault: the driver refuses a launch.
        """
        for step in self._steps:
            step(buffers)


class _Patch(NamedTuple):
    """A pointer inside the parameters that differs from buffer set to buffer set."""

    offset: int
    buffer: Buffer
    offset_bytes: int


class _BoundLaunch:
    """One launch, with its parameters laid out once; only pointers change between buffer sets."""

    def __init__(self, launch: Launch, kernel: Any, stream: int) -> None:
        from cuda.bindings import driver

        self._kernel = kernel
        self._launch = launch
        self._driver = driver
        self._config = _config(launch, stream)
        self._patches: list[_Patch] = []
        self._maps: list[tuple[Any, TensorMap]] = []
        self._keep: list[object] = []
        offsets, image = [], bytearray()
        for argument in launch.arguments:
            image += bytes(-len(image) % 16)
            offsets.append(len(image))
            image += self._lay_out(argument, len(image))
        self._image = (ctypes.c_ubyte * max(1, len(image))).from_buffer_copy(bytes(image) or b"\0")
        base = ctypes.addressof(self._image)
        addresses = [base + offset for offset in offsets]
        maps = iter(self._maps)
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, TensorMap):
                addresses[index] = int(next(maps)[0].getPtr())
        self._parameters = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._parameters_address = ctypes.addressof(self._parameters)

    def enqueue(self, buffers: BufferSet) -> None:
        """Put the launch on the stream with the addresses of one buffer set."""
        bases = _addresses(buffers)
        for patch in self._patches:
            struct.pack_into("<Q", self._image, patch.offset, bases[patch.buffer] + patch.offset_bytes)
        for descriptor, argument in self._maps:
            check(self._driver.cuTensorMapReplaceAddress(descriptor, bases[argument.buffer] + argument.offset_bytes))
        result = self._driver.cuLaunchKernelEx(self._config, self._kernel, self._parameters_address, 0)
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            name = result[0].name.removeprefix("CUDA_ERROR_")
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"the driver refused the launch of {self._launch.kernel}: {name}")

    def _lay_out(self, argument: Argument, offset: int) -> bytes:
        """The parameter's bytes; notes where pointers go."""
        if isinstance(argument, Scalar):
            value = float(argument.value) if argument.dtype in (ScalarType.F32, ScalarType.F64) else int(argument.value)
            return struct.pack(_SCALAR_CODES[argument.dtype], value)
        if isinstance(argument, Pointer):
            self._patches.append(_Patch(offset, argument.buffer, argument.offset_bytes))
            return bytes(8)
        if isinstance(argument, Struct):
            layout = struct_layout(argument)
            image = bytearray(layout.size_bytes)
            for at, field in zip(layout.offsets_bytes, argument.fields, strict=True):
                part = self._lay_out(field, offset + at)
                image[at : at + len(part)] = part
            return bytes(image)
        if isinstance(argument, Table):
            import torch

            table = torch.frombuffer(bytearray(argument.data), dtype=torch.uint8).cuda()
            self._keep.append(table)
            return struct.pack("<Q", table.data_ptr())
        self._maps.append((_encode(argument), argument))
        return bytes(128)


def check(result: tuple[Any, ...]) -> Any:
    """The values of a driver or runtime call.

    Raises:
        SubmissionFault: an error that a kernel caused; the context is lost.
        MachineFault: any other error.
    """
    code, values = result[0], result[1:]
    if int(code) == 0:
        return values[0] if len(values) == 1 else values
    raise fault(code.name)


def fault(name: str) -> SubmissionFault | MachineFault:
    """The exception for an error's name, such as cudaErrorIllegalAddress or CUDA_ERROR_ILLEGAL_ADDRESS."""
    plain = "".join(character for character in name.upper() if character.isalnum())
    if any(plain.endswith(kind.replace("_", "")) for kind in FAULTS):
        return SubmissionFault(Reason.ILLEGAL_ACCESS, f"a kernel faulted: {name}", fatal=True)
    if plain.endswith(("MEMORYALLOCATION", "OUTOFMEMORY")):
        return MachineFault(Reason.OUT_OF_MEMORY, "the device has too little free memory for this shape", fatal=True)
    if plain.endswith(("INVALIDIMAGE", "NOBINARYFORGPU", "NOTFOUND", "INVALIDVALUE", "INVALIDSOURCE")):
        return SubmissionFault(Reason.LAUNCH_ERROR, f"the driver refused part of the plan: {name}")
    return MachineFault(Reason.DEVICE_ERROR, f"CUDA failed: {name}", fatal=True)


def _config(launch: Launch, stream: int) -> Any:
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.dynamic_shared_bytes
    config.hStream = stream
    attributes = []
    if launch.cluster is not None:
        attribute = _attribute("CLUSTER_DIMENSION")
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = launch.cluster
        attributes.append(attribute)
    if launch.cooperative:
        attribute = _attribute("COOPERATIVE")
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if launch.programmatic:
        attribute = _attribute("PROGRAMMATIC_STREAM_SERIALIZATION")
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _attribute(name: str) -> Any:
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return attribute


def _encode(argument: TensorMap) -> Any:
    """Encode a tensor map at a stand-in address; the real one is put in for every buffer set."""
    from cuda.bindings import driver

    def choice(kind: str, name: str) -> Any:
        return getattr(getattr(driver, kind), name)

    dtype = {TensorMapType.F16: "FLOAT16", TensorMapType.F32: "FLOAT32", TensorMapType.U8: "UINT8"}
    dtype |= {TensorMapType.U16: "UINT16", TensorMapType.U32: "UINT32"}
    swizzle = {Swizzle.NONE: "NONE", Swizzle.B32: "32B", Swizzle.B64: "64B", Swizzle.B128: "128B"}
    interleave = {Interleave.NONE: "NONE", Interleave.B16: "16B", Interleave.B32: "32B"}
    promotion = {L2Promotion.NONE: "NONE", L2Promotion.B64: "L2_64B", L2Promotion.B128: "L2_128B", L2Promotion.B256: "L2_256B"}
    fill = {OutOfBoundsFill.ZERO: "NONE", OutOfBoundsFill.NAN: "NAN_REQUEST_ZERO_FMA"}
    rank = len(argument.dims)
    return check(
        driver.cuTensorMapEncodeTiled(
            choice("CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{dtype[argument.dtype]}"),
            rank,
            1 << 20,
            [driver.cuuint64_t(value) for value in argument.dims],
            [driver.cuuint64_t(value) for value in argument.strides_bytes],
            [driver.cuuint32_t(value) for value in argument.box],
            [driver.cuuint32_t(value) for value in argument.element_strides or (1,) * rank],
            choice("CUtensorMapInterleave", f"CU_TENSOR_MAP_INTERLEAVE_{interleave[argument.interleave]}"),
            choice("CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{swizzle[argument.swizzle]}"),
            choice("CUtensorMapL2promotion", f"CU_TENSOR_MAP_L2_PROMOTION_{promotion[argument.l2_promotion]}"),
            choice("CUtensorMapFloatOOBfill", f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill[argument.fill]}"),
        )
    )


def _memset(step: Memset, stream: int) -> Enqueue:
    from cuda.bindings import driver

    def enqueue(buffers: BufferSet) -> None:
        address = _addresses(buffers)[step.buffer] + step.offset_bytes
        check(driver.cuMemsetD32Async(address, step.value, step.size_bytes // 4, stream))

    return enqueue


def _addresses(buffers: BufferSet) -> dict[Buffer, int]:
    return {
        Buffer.A: buffers.a.data_ptr(),
        Buffer.B: buffers.b.data_ptr(),
        Buffer.C: buffers.c.data_ptr(),
        Buffer.WORKSPACE: buffers.workspace.data_ptr(),
    }


def _ctas(launch: Launch) -> int:
    x, y, z = launch.cluster or (1, 1, 1)
    return x * y * z
